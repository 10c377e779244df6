#include "bimetal/membership/door.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <limits>
#include <utility>

#include "bimetal/base/error.h"
#include "bimetal/comm/meet/meet.h"

namespace bimetal::membership {
namespace {

constexpr const char* kKnocks = "door/knocks";
constexpr const char* kMeets = "door/meets";

constexpr const char* kPortVariable = "BIMETAL_DOOR_PORT";

/// How long a visitor waits for its answer before it shows again that it waits.
constexpr std::chrono::milliseconds kBeatEvery{100};

std::string knock_key(std::int64_t number) {
  return fmt::format("door/knock/{}", number);
}
std::string beat_key(std::int64_t number) {
  return fmt::format("door/beat/{}", number);
}
std::string answer_key(std::int64_t number) {
  return fmt::format("door/answer/{}", number);
}

/// The deadline for this process's own store.
Deadline soon() {
  return Deadline::after(std::chrono::seconds(10));
}

}  // namespace

Door::Door(const net::Endpoint& listen, const net::Token& token, std::chrono::milliseconds silence)
    : server_(listen, token),
      address_{net::reachable_address(server_.endpoint().host), server_.endpoint().port},
      token_(token),
      silence_(silence),
      store_(rendezvous::connect_store(address_, token, soon())) {}

void Door::show_that_it_meets() {
  if (!next_sign_.expired()) return;
  next_sign_ = Deadline::after(kBeatEvery);
  store_->add(kMeets, 1, soon());
}

void Door::look() {
  fresh_ = !std::exchange(looked_, Deadline::after(silence_)).expired();
  const auto knocks = store_->add(kKnocks, 0, soon());
  while (seen_ < knocks) unread_.emplace(++seen_, Deadline::after(silence_));
  std::erase_if(unread_, [&](const auto& one) {
    const auto text = store_->try_get(knock_key(one.first), soon());
    if (text) take(one.first, *text);
    return text || one.second.expired();
  });
  for (auto& [number, visitor] : visitors_) {
    const auto beats = store_->add(beat_key(number), 0, soon());
    // Beats counted before the first look may be those of a process that is gone.
    if (visitor.beats >= 0 && beats != visitor.beats) {
      visitor.there_until = Deadline::after(silence_);
    }
    visitor.beats = beats;
  }
}

void Door::take(std::int64_t number, std::string_view text) {
  try {
    Visitor visitor{number, decode_knock(text)};
    if (fresh_) visitor.there_until = Deadline::after(silence_);
    auto& last = numbers_[visitor.knock.who.id];
    visitors_.erase(std::exchange(last, number));
    visitors_.emplace(number, std::move(visitor));
  } catch (const Error&) {
    // A process whose knock makes no sense waits for nothing.
  }
}

const Visitor* Door::visitor(std::uint64_t id) const {
  const auto number = numbers_.find(id);
  if (number == numbers_.end()) return nullptr;
  const auto found = visitors_.find(number->second);
  return found == visitors_.end() ? nullptr : &found->second;
}

void Door::answer(std::int64_t number, const Answer& answer) {
  store_->set(answer_key(number), encode_answer(answer), soon());
  visitors_.erase(number);
}

void Door::answer_all(const Answer& answer) {
  std::erase_if(visitors_, [&](const auto& one) {
    if (!one.second.there()) return false;
    store_->set(answer_key(one.first), encode_answer(answer), soon());
    return true;
  });
}

Answer knock_at(rendezvous::Store& store, const Knock& knock, std::chrono::milliseconds silence,
                std::optional<std::chrono::milliseconds> timeout,
                const std::function<void()>& wait) {
  const auto add = [&](const std::string& key, std::int64_t delta) {
    try {
      return store.add(key, delta, Deadline::after(silence));
    } catch (const Error& error) {
      if (error.code() != ErrorCode::Timeout) throw;
      throw Error(ErrorCode::PeerLost, fmt::format("a member is silent: {}", error.what()));
    }
  };
  const auto number = add(kKnocks, 1);
  store.set(knock_key(number), encode_knock(knock), Deadline::after(silence));
  std::int64_t signs = 0;
  std::optional<Deadline> until;
  while (true) {
    add(beat_key(number), 1);
    const auto signs_now = add(kMeets, 0);
    if (timeout && (!until || signs_now != signs)) until = Deadline::after(*timeout);
    signs = signs_now;
    try {
      return decode_answer(store.get(answer_key(number), Deadline::after(kBeatEvery)));
    } catch (const Error& error) {
      if (error.code() != ErrorCode::Timeout || (until && until->expired())) throw;
    }
    wait();
  }
}

std::vector<net::Endpoint> doors_in(std::string_view text) {
  std::vector<net::Endpoint> doors;
  while (!text.empty()) {
    const auto end = std::min(text.find(','), text.size());
    doors.push_back(net::parse_endpoint(text.substr(0, end)));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return doors;
}

net::Endpoint door_of_process(const std::optional<net::Endpoint>& towards, int local_rank,
                              bool comes_later) {
  net::Endpoint door;
  if (const char* own = std::getenv("BIMETAL_ADDRESS"); own != nullptr && *own != '\0') {
    door.host = own;
  } else {
    door.host = comes_later && towards ? net::address_towards(*towards)
                                       : comm::address_for_meeting(towards);
  }
  const char* text = std::getenv(kPortVariable);
  if (text == nullptr || *text == '\0' || comes_later) return door;
  const std::string_view digits = text;
  int first = 0;
  const auto [end, error] = std::from_chars(digits.begin(), digits.end(), first);
  const auto port = std::int64_t{first} + local_rank;
  if (error != std::errc() || end != digits.end() || first <= 0 ||
      port > std::numeric_limits<std::uint16_t>::max()) {
    throw Error(ErrorCode::InvalidArgument,
                fmt::format("{} is '{}', which gives local rank {} no port", kPortVariable, text,
                            local_rank));
  }
  door.port = static_cast<std::uint16_t>(port);
  return door;
}

void show(rendezvous::Store& store, const Roll& roll) {
  store.set(kRollKey, encode_roll(roll), soon());
}

std::optional<Roll> roll_at(rendezvous::Store& store, Deadline deadline) {
  const auto text = store.try_get(kRollKey, deadline);
  return text ? std::optional(decode_roll(*text)) : std::nullopt;
}

}  // namespace bimetal::membership

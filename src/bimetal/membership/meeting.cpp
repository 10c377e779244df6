#include "bimetal/membership/meeting.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <utility>

#include "bimetal/rendezvous/store.h"

namespace bimetal::membership {
namespace {

/// A member that is there comes in less, unless it computes.
constexpr std::chrono::milliseconds kAtOnce{100}, kToBeSure{1000};
constexpr std::chrono::milliseconds kLookEvery{100};

}  // namespace

std::vector<Member> newcomers_at(Door& door, const Roll& roll, const Objection& objection) {
  std::vector<Member> newcomers;
  std::vector<std::pair<std::int64_t, Error>> refused;
  for (const auto& [number, visitor] : door.visitors()) {
    if (!visitor.there() || roll.find(visitor.knock.who.id) != nullptr) continue;
    if (const auto error = objection(visitor.knock)) {
      refused.emplace_back(number, *error);
    } else {
      newcomers.push_back(visitor.knock.who);
    }
  }
  for (const auto& [number, error] : refused) {
    door.answer(number, {.verdict = Verdict::refused, .error = error});
  }
  return newcomers;
}

Meeting::Meeting(Door& door, const Roll& roll, const Member& self,
                 std::chrono::milliseconds silence, std::chrono::milliseconds timeout)
    : door_(door), roll_(roll), self_(self), silence_(silence), timeout_(timeout) {}

const Visitor* Meeting::visitor(std::uint64_t id) const {
  const auto* const found = door_.visitor(id);
  return found != nullptr && found->there() ? found : nullptr;
}

bool Meeting::has_come(const Member& member) const {
  return member.id == self_.id || visitor(member.id) != nullptr;
}

Meeting::State Meeting::look() {
  door_.show_that_it_meets();
  door_.look();
  for (const auto& [number, visitor] : door_.visitors()) {
    if (visitor.there() && roll_.find(visitor.knock.who.id) != nullptr) {
      suspect({visitor.knock.lost.begin(), visitor.knock.lost.end()});
    }
  }
  bool settled = true, before_this = true;
  for (const auto& member : roll_.members) {
    if (member.id == self_.id) before_this = false;
    settled = (has_come(member) || look_after(member, before_this)) && settled;
  }
  if (elsewhere_) return State::elsewhere;
  return settled ? State::settled : State::waiting;
}

/// Whether a member that has not come is gone.
bool Meeting::look_after(const Member& member, bool before_this) {
  if (gone_.contains(member.id)) return true;
  const auto waited = std::chrono::steady_clock::now() - began_;
  const bool suspected = suspected_.contains(member.id);
  if (waited < kAtOnce && !suspected) return false;
  auto& next = next_look_.try_emplace(member.id, Deadline::at({})).first->second;
  if (!next.expired()) return false;
  next = Deadline::after(kLookEvery);
  bool gone = false;
  try {
    const auto soon = Deadline::after(std::min(silence_, kToBeSure));
    const auto store = rendezvous::connect_store_at_once(member.door, door_.token(), soon);
    const auto theirs = roll_at(*store, soon);
    if (theirs && theirs->epoch > roll_.epoch) newer_ = theirs;
    const bool should_have_come = waited > std::min({silence_, kToBeSure, timeout_});
    elsewhere_ = elsewhere_ || newer_ || (before_this && should_have_come);
    gone = waited > timeout_ && !elsewhere_;
  } catch (const Error& error) {
    // Nobody listens there; or the process is stopped, or its network is cut.
    gone = error.code() == ErrorCode::PeerLost || waited > silence_;
  }
  if (gone) gone_.insert(member.id);
  return gone;
}

std::optional<Error> Meeting::failure() const {
  for (const auto& [number, visitor] : door_.visitors()) {
    const bool member = roll_.find(visitor.knock.who.id) != nullptr;
    if (member && visitor.there() && visitor.knock.failure) return visitor.knock.failure;
  }
  return std::nullopt;
}

bool Meeting::has_majority() const {
  if (roll_.keeper.empty()) return true;
  const auto here = static_cast<std::size_t>(
      std::ranges::count_if(roll_.members, [this](const auto& one) { return has_come(one); }));
  if (2 * here != roll_.members.size()) return 2 * here > roll_.members.size();
  const auto keeper = std::ranges::find(roll_.members, roll_.keeper, &Member::host);
  return keeper != roll_.members.end() && has_come(*keeper);
}

std::vector<Member> Meeting::members() const {
  std::vector<Member> members;
  for (const auto& member : roll_.members) {
    if (has_come(member)) members.push_back(member);
  }
  members.insert(members.end(), newcomers_.begin(), newcomers_.end());
  return members;
}

void Meeting::admit(const Objection& objection, int most) {
  newcomers_.clear();
  auto room = most - size();
  for (auto& member : newcomers_at(door_, roll_, objection)) {
    if (most == 0 || room-- > 0) newcomers_.push_back(std::move(member));
  }
}

Roll Meeting::decide(const std::string& prefix) {
  Roll next{.epoch = roll_.epoch + 1, .members = members(), .keeper = roll_.keeper};
  const auto keeps = std::ranges::find(next.members, next.keeper, &Member::host);
  if (!next.keeper.empty() && keeps == next.members.end()) {
    next.keeper = next.members.front().host;
  }
  for (std::size_t rank = 0; rank < next.members.size(); ++rank) {
    const auto id = next.members[rank].id;
    if (id == self_.id) rank_ = static_cast<int>(rank);
    if (const auto* one = visitor(id)) {
      door_.answer(one->number, {Verdict::member, static_cast<int>(rank), next, prefix});
    }
  }
  return next;
}

Error Meeting::shortage(int least) const {
  std::vector<std::string> missing;
  for (const auto& member : roll_.members) {
    if (!has_come(member)) missing.push_back(member.name);
  }
  const auto who = fmt::format("{} of {} members are there, without {}", size(),
                               roll_.members.size(), fmt::join(missing, ", "));
  if (has_majority()) {
    return {ErrorCode::PeerLost,
            fmt::format("{}, and elastic.min_workers asks for {}", who, least)};
  }
  return {ErrorCode::PeerLost,
          fmt::format("{}: most of them, or half with machine {}, may go on (elastic.keeper), so "
                      "that a cut network does not train twice",
                      who, roll_.keeper)};
}

}  // namespace bimetal::membership

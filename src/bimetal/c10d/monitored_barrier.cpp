#include "bimetal/c10d/monitored_barrier.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <charconv>
#include <chrono>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "bimetal/base/error.h"

namespace bimetal::c10d {
namespace {

using std::chrono::milliseconds;

// How long the others wait beyond the deadline for rank 0's word about who was missing.
constexpr milliseconds kForTheVerdict{500};
constexpr milliseconds kPause{2};

std::string key(std::uint64_t number, std::string_view name) {
  return fmt::format("monitored_barrier/{}/{}", number, name);
}

std::string came(std::uint64_t number, int rank) {
  return key(number, std::to_string(rank));
}

[[noreturn]] void report(const std::vector<int>& missing) {
  throw Error(ErrorCode::Timeout,
              fmt::format("these ranks did not come to the monitored barrier in time: {}",
                          fmt::join(missing, ", ")),
              missing.front());
}

std::vector<int> read_list(const std::string& text) {
  std::vector<int> list;
  const char* at = text.data();
  const char* const end = at + text.size();
  for (int rank; at < end; ++at) {
    const auto [next, error] = std::from_chars(at, end, rank);
    if (error != std::errc()) break;
    list.push_back(rank);
    at = next;
  }
  return list;
}

bool wait_for(::c10d::Store& store, const std::string& name, Deadline deadline) {
  while (!store.check({name})) {
    if (deadline.expired()) return false;
    std::this_thread::sleep_for(kPause);
  }
  return true;
}

}  // namespace

void monitored_barrier(::c10d::Store& store, int rank, int size, std::uint64_t number,
                       const std::vector<std::uint64_t>& global_ranks, Deadline deadline) {
  const auto name_of = [&](int r) {
    return global_ranks.empty() ? r
                                : static_cast<int>(global_ranks.at(static_cast<std::size_t>(r)));
  };
  const std::string verdict = key(number, "verdict");
  if (rank != 0) {
    store.set(came(number, rank), std::string("here"));
    if (!wait_for(store, verdict, Deadline::at(deadline.time() + kForTheVerdict))) {
      report({name_of(0)});
    }
    const auto missing = read_list(store.get_to_str(verdict));
    if (!missing.empty()) report(missing);
    return;
  }
  std::vector<int> missing;
  for (int other = 1; other < size; ++other) {
    if (wait_for(store, came(number, other), deadline)) {
      store.deleteKey(came(number, other));
    } else {
      missing.push_back(name_of(other));
    }
  }
  // Everybody has read the verdict of the barrier before the last one.
  if (number > 2) store.deleteKey(key(number - 2, "verdict"));
  store.set(verdict, missing.empty() ? "all" : fmt::format("{}", fmt::join(missing, " ")));
  if (!missing.empty()) report(missing);
}

namespace {

constexpr const char* kGo = "go";
constexpr const char* kStay = "stay";

std::string key_of(std::uint64_t number, std::string_view name) {
  return fmt::format("blocked_callbacks/{}/{}", number, name);
}

ReleaseVote::Outcome outcome_of(std::string_view word) {
  return word == kGo ? ReleaseVote::Outcome::go : ReleaseVote::Outcome::stay;
}

}  // namespace

ReleaseVote::Outcome ReleaseVote::cast(std::uint64_t number) {
  if (store_->add(key_of(number, "votes"), 1) < size_) return look(number);
  return decide(number, kGo);
}

ReleaseVote::Outcome ReleaseVote::look(std::uint64_t number) {
  const std::string name = key_of(number, "outcome");
  return store_->check({name}) ? outcome_of(store_->get_to_str(name)) : Outcome::open;
}

ReleaseVote::Outcome ReleaseVote::refuse(std::uint64_t number) {
  return decide(number, kStay);
}

/// The first word stays.
ReleaseVote::Outcome ReleaseVote::decide(std::uint64_t number, const char* outcome) {
  const std::string_view word = outcome;
  const std::vector<std::uint8_t> value(word.begin(), word.end());
  const auto stands = store_->compareSet(key_of(number, "outcome"), {}, value);
  return outcome_of({reinterpret_cast<const char*>(stands.data()), stands.size()});
}

}  // namespace bimetal::c10d

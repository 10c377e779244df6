#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <utility>

#include "bimetal/comm/reduce/reduce_kernels.h"
#include "bimetal/comm/shm/collectives.h"

namespace bimetal::comm {
namespace {

// Beyond it, reading all ranks' inputs costs more than a second exchange would.
constexpr std::size_t kMostGiven = std::size_t{32} << 10;
constexpr std::size_t kMostRead = std::size_t{128} << 10;
static_assert(kMostGiven <= ShmTeam::slot_bytes());

// How long a thread that could do other things stays for ranks that are late.
constexpr std::chrono::microseconds kStay{50};

}  // namespace

std::size_t ShortCall::bytes_given(const Call& call, int team_size) {
  const std::size_t bytes = call.count * size_of(call.dtype);
  const bool for_each =
      call.operation == Operation::reduce_scatter || call.operation == Operation::scatter;
  return for_each ? bytes * static_cast<std::size_t>(team_size) : bytes;
}

bool ShortCall::suits(const Call& call, int team_size) {
  switch (call.operation) {
    case Operation::all_to_all:  // its ranks may give different amounts
    case Operation::all_gather_bytes:
    case Operation::send_recv: return false;
    case Operation::barrier: return true;
    default: break;
  }
  if (!call.part_counts.empty() && call.count > 0) return false;  // they have no common length
  const std::size_t most = std::min(kMostGiven, kMostRead / static_cast<std::size_t>(team_size));
  // Before multiplying: a count may be anything.
  return call.count <= most && bytes_given(call, team_size) <= most;
}

bool ShortCall::gives() const {
  const bool from_root =
      call_.operation == Operation::broadcast || call_.operation == Operation::scatter;
  return !from_root || team_.rank() == call_.root;
}

bool ShortCall::needs(int rank) const {
  switch (call_.operation) {
    case Operation::broadcast:
    case Operation::scatter: return rank == call_.root;
    case Operation::reduce:
    case Operation::gather: return team_.rank() == call_.root;
    default: return true;
  }
}

ShortCall::ShortCall(ShmTeam& team, Call call, Operands operands, WaitGuard& guard)
    : team_(team), call_(std::move(call)), operands_(operands) {
  team_.begin(call_, guard);
  slot_ = team_.claim_slot(guard);
  const std::size_t bytes = bytes_given(call_, team_.size());
  if (gives() && bytes > 0) {
    std::memcpy(team_.slot_of(team_.rank(), slot_), operands_.input.data(), bytes);
  }
  step_ = team_.publish();
}

void ShortCall::collect(WaitGuard& guard) {
  for (int rank = 0; rank < team_.size(); ++rank) {
    if (needs(rank)) team_.wait_for(rank, step_, guard);
  }
  take();
}

bool ShortCall::collect_at_once() {
  const auto end = ShmTeam::Clock::now() + kStay;
  try {
    for (int rank = 0; rank < team_.size(); ++rank) {
      if (!needs(rank)) continue;
      if (!team_.wait_awake(rank, step_, end)) return false;
      team_.check_calls(rank);
    }
  } catch (const Error&) {
    return false;
  }
  take();
  return true;
}

void ShortCall::take() {
  const int size = team_.size();
  const std::size_t bytes = call_.count * size_of(call_.dtype);
  const bool at_root = team_.rank() == call_.root;
  const auto own = static_cast<std::size_t>(team_.rank());
  const auto given_by = [&](int rank) { return team_.slot_of(rank, slot_); };
  const auto copy = [&](std::size_t to, const std::byte* from) {
    if (bytes > 0) std::memcpy(operands_.output.data() + to, from, bytes);
  };
  const auto reduce_from = [&](std::size_t offset) {
    std::array<const std::byte*, kMaxTeam> sources;
    for (int rank = 0; rank < size; ++rank) sources[rank] = given_by(rank) + offset;
    std::byte* const target = operands_.output.data();
    reduce_across(std::span(sources).first(size), {&target, 1}, call_.count, call_.dtype,
                  *call_.reduce_op);
  };
  switch (call_.operation) {
    case Operation::all_reduce: reduce_from(0); break;
    case Operation::reduce:
      if (at_root) reduce_from(0);
      break;
    case Operation::reduce_scatter: reduce_from(own * bytes); break;
    case Operation::broadcast:
      if (!at_root) copy(0, given_by(call_.root));
      break;
    case Operation::scatter: copy(0, given_by(call_.root) + own * bytes); break;
    case Operation::gather:
      if (!at_root) break;
      [[fallthrough]];
    case Operation::all_gather:
      for (int rank = 0; rank < size; ++rank) {
        copy(static_cast<std::size_t>(rank) * bytes, given_by(rank));
      }
      break;
    default: break;
  }
  team_.release_slot(slot_);
}

}  // namespace bimetal::comm

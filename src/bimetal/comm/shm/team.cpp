#include "bimetal/comm/shm/team.h"

#include <algorithm>
#include <cstring>
#include <thread>
#include <utility>

#include "bimetal/comm/reduce/reduce_kernels.h"

namespace bimetal::comm {
namespace {

constexpr auto kRelaxed = std::memory_order_relaxed;

}  // namespace

ShmTeam::ShmTeam(std::uint32_t group, int rank, std::vector<int> world_ranks,
                 std::vector<net::SharedMemory> segments)
    : group_(group),
      rank_(rank),
      world_ranks_(std::move(world_ranks)),
      segments_(std::move(segments)),
      crowded_(segments_.size() > std::max(1u, std::thread::hardware_concurrency())),
      seen_(segments_.size()),
      checked_(segments_.size()) {
  for (int of = 0; of < size(); ++of) {
    bells_.emplace_back(segment(of).sleep.bell, segments_[of].address());
  }
}

void ShmTeam::begin(const Call& call, WaitGuard& guard) {
  wait_until_free(lead_limit(), guard);
  const std::size_t place = calls_ % Segment::kCalls;
  ends_[(calls_ + Segment::kCalls - 1) % Segment::kCalls] = step_ + 1;
  ++calls_;
  made_[place] = call;
  Segment& own = segment(rank_);
  own.calls[place].post(call.header_to(group_, rank_));
  for (std::size_t to = 0; to < call.send_counts.size(); ++to) {
    own.pair_counts[place][to].store(call.send_counts[to], kRelaxed);
  }
}

ShmTeam::Step ShmTeam::publish() {
  segment(rank_).progress.step.store(++step_, std::memory_order_release);
  // Either a sleeper sees the step before it sleeps, or it is seen here.
  std::atomic_thread_fence(std::memory_order_seq_cst);
  for (int other = 0; other < size(); ++other) {
    auto& sleep = segment(other).sleep;
    auto awaited = sleep.awaited.load(kRelaxed);
    if (!Segment::Sleep::is_due(awaited, rank_, step_)) continue;
    if (sleep.awaited.compare_exchange_strong(awaited, 0)) bells_[other].ring();
  }
  return step_;
}

bool ShmTeam::free_to_begin() {
  for (int other = 0; other < size(); ++other) {
    if (!reached(other, lead_limit())) return false;
    if (!reached(other, free_after_[next_slot_])) return false;
  }
  return true;
}

bool ShmTeam::reached(int rank, Step step) {
  if (rank == rank_ || seen_[rank] >= step) return true;
  seen_[rank] = segment(rank).progress.step.load(std::memory_order_acquire);
  return seen_[rank] >= step;
}

bool ShmTeam::wait_awake(int rank, Step step, Clock::time_point end) {
  const auto spin_end = crowded_ ? Clock::time_point{} : Clock::now() + kSpin;
  for (unsigned round = 0;; ++round) {
    if (reached(rank, step)) return true;
    // The clock costs as much as some pauses.
    if (round % 16 != 0 && !crowded_) {
      net::pause_processor();
      continue;
    }
    const auto now = Clock::now();
    if (now >= end) return false;
    if (now >= spin_end) std::this_thread::yield();
  }
}

void ShmTeam::wait_for(int rank, Step step, WaitGuard& guard) {
  if (!reached(rank, step) && !wait_awake(rank, step, Clock::now() + kAwake)) {
    sleep_for(rank, step, guard);
  }
  check_calls(rank);
}

void ShmTeam::wait_for_all(Step step, WaitGuard& guard) {
  for (int other = 0; other < size(); ++other) wait_for(other, step, guard);
}

void ShmTeam::sleep_for(int rank, Step step, WaitGuard& guard) {
  auto& sleep = segment(rank_).sleep;
  while (!reached(rank, step)) {
    const auto seen = bells_[rank_].seen();
    sleep.awaited.store(Segment::Sleep::awaiting(rank, step), kRelaxed);
    std::atomic_thread_fence(std::memory_order_seq_cst);
    if (!reached(rank, step)) {
      const auto left = guard.still_waiting(rank);
      if (left && !reached(rank, step)) {
        sleep.awaited.store(0, kRelaxed);
        throw left->to_error();
      }
      bells_[rank_].sleep(seen, kSleep);
    }
    sleep.awaited.store(0, kRelaxed);
  }
}

void ShmTeam::check_calls(int rank) {
  if (rank == rank_) return;
  // Older ones may have been overwritten; ranks that wait for each other in them find out by
  // probes.
  constexpr std::uint64_t kKept = Segment::kCalls - Segment::kLead;
  checked_[rank] = std::max(checked_[rank], calls_ - std::min(calls_, kKept));
  for (; checked_[rank] < calls_; ++checked_[rank]) {
    const std::size_t place = checked_[rank] % Segment::kCalls;
    const Call& made = *made_[place];
    auto posted = segment(rank).calls[place].header(group_);
    if (posted.operation == static_cast<std::uint8_t>(Operation::all_to_all)) {
      posted.count = segment(rank).pair_counts[place][rank_].load(kRelaxed);
    }
    const auto expected = made.header_from(group_, rank);
    if (!same_call(posted, expected)) {
      throw mismatch(world_ranks_[rank], posted, world_ranks_[rank_], expected).to_error();
    }
  }
}

std::size_t ShmTeam::claim_slot(WaitGuard& guard) {
  const std::size_t slot = std::exchange(next_slot_, (next_slot_ + 1) % Segment::kSlots);
  wait_until_free(free_after_[slot], guard);
  return slot;
}

// Others' calls are not looked at: they may not have made the present one yet.
void ShmTeam::wait_until_free(Step step, WaitGuard& guard) {
  for (int other = 0; other < size(); ++other) {
    if (reached(other, step) || wait_awake(other, step, Clock::now() + kAwake)) continue;
    sleep_for(other, step, guard);
  }
}

void ShmTeam::post_place(const std::optional<Place>& place) {
  auto& call = segment(rank_).calls[(calls_ - 1) % Segment::kCalls];
  call.memory.store(place ? place->offset + 1 : 0, kRelaxed);
  call.arena.store(place ? place->arena : 0, kRelaxed);
}

std::optional<ShmTeam::Place> ShmTeam::posted_place(int rank) const {
  const auto& call = segment(rank).calls[(calls_ - 1) % Segment::kCalls];
  const auto memory = call.memory.load(kRelaxed);
  if (memory == 0) return std::nullopt;
  return Place{call.arena.load(kRelaxed), memory - 1};
}

std::uint64_t ShmTeam::pair_count(int from, int to) const {
  const std::size_t place = (calls_ - 1) % Segment::kCalls;
  return segment(from).pair_counts[place][to].load(kRelaxed);
}

LaneReduction::LaneReduction(ShmTeam& team, std::span<std::byte> data, const Lanes& lanes,
                             DType dtype, ReduceOp op, WaitGuard& guard)
    : team_(team),
      data_(data),
      lanes_(lanes),
      dtype_(dtype),
      op_(op == ReduceOp::avg ? ReduceOp::sum : op),
      guard_(guard) {}

template <typename Write, typename Read>
void LaneReduction::stream(std::size_t first, std::size_t last, Write write, Read read) {
  Step before{};
  for (std::size_t k = first; k <= last; ++k) {
    Step now{};
    if (k < last) {
      now.slot = team_.claim_slot(guard_);
      write(k, now.slot);
      now.step = team_.publish();
    }
    if (k > first) {
      read(k - 1, before);
      team_.release_slot(before.slot);
    }
    before = now;
  }
}

std::span<std::byte> LaneReduction::chunk(std::size_t k, int lane) const {
  const Range range = lanes_.lane(lane);
  const std::size_t begin = std::min(k * lanes_.chunk_bytes(), range.bytes);
  return data_.subspan(range.begin + begin, std::min(lanes_.chunk_bytes(), range.bytes - begin));
}

std::byte* LaneReduction::place(int rank, std::size_t slot, int lane) const {
  return team_.slot_of(rank, slot) + static_cast<std::size_t>(lane) * lanes_.chunk_bytes();
}

void LaneReduction::copy_in(std::size_t slot, std::size_t k, int lane) {
  const auto from = chunk(k, lane);
  if (!from.empty()) std::memcpy(place(team_.rank(), slot, lane), from.data(), from.size());
}

void LaneReduction::reduce(std::size_t first, std::size_t last) {
  stream(
      first, last,
      [&](std::size_t k, std::size_t slot) {
        for (int lane = 0; lane < lanes_.number; ++lane) {
          if (lane != team_.rank()) copy_in(slot, k, lane);
        }
      },
      [&](std::size_t k, const Step& at) {
        if (!owner()) return;
        team_.wait_for_all(at.step, guard_);
        const auto own = chunk(k, team_.rank());
        std::array<const std::byte*, kMaxTeam> sources;
        for (int rank = 0; rank < team_.size(); ++rank) {
          sources[rank] = rank == team_.rank() ? own.data() : place(rank, at.slot, team_.rank());
        }
        std::byte* const target = own.data();
        reduce_across(std::span(sources).first(team_.size()), {&target, 1},
                      own.size() / size_of(dtype_), dtype_, op_);
      });
}

void LaneReduction::spread(std::size_t first, std::size_t last) {
  stream(
      first, last,
      [&](std::size_t k, std::size_t slot) {
        if (owner()) copy_in(slot, k, team_.rank());
      },
      [&](std::size_t k, const Step& at) {
        for (int lane = 0; lane < lanes_.number; ++lane) {
          if (lane == team_.rank()) continue;
          team_.wait_for(lane, at.step, guard_);
          const auto to = chunk(k, lane);
          if (!to.empty()) std::memcpy(to.data(), place(lane, at.slot, lane), to.size());
        }
      });
}

}  // namespace bimetal::comm

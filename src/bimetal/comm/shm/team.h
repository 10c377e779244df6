#pragma once
// Ranks of one host that meet in shared memory. Every rank counts its steps, all ranks take the
// same steps in a call, and each waits only for the others' counts. So nothing is locked. The
// collectives use it (collectives.h). docs/shared_memory.md has the whole scheme.
//
// The inner level of an all-reduce in two levels. The ranks of a team reduce their data to lanes:
// slices of the data that their first ranks own, one each. Later the owners give the lanes to all
// ranks. In between they may use their lanes freely. It works chunk by chunk, through the slots.

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "bimetal/comm/call.h"
#include "bimetal/comm/failure.h"
#include "bimetal/comm/mailbox/channel.h"
#include "bimetal/comm/shm/segment.h"
#include "bimetal/net/shm/shared_memory.h"

namespace bimetal::comm {

/// Asked now and then by a wait that takes long, with the team's rank that it is for.
class WaitGuard {
 public:
  virtual ~WaitGuard() = default;

  /// Throws if the wait must end. A failure given back counts unless the rank turns out to have
  /// come before it left.
  virtual std::optional<Failure> still_waiting(int rank) = 0;
};

/// For one thread at a time. Ranks are the team's unless said otherwise.
class ShmTeam {
 public:
  using Step = std::uint64_t;
  using Clock = std::chrono::steady_clock;

  /// `segments[r]` is rank r's, each of segment_bytes(), zeroed in the beginning. `world_ranks` are
  /// for messages, `group` for headers.
  ShmTeam(std::uint32_t group, int rank, std::vector<int> world_ranks,
          std::vector<net::SharedMemory> segments);

  static constexpr std::size_t segment_bytes() { return sizeof(Segment); }

  int rank() const noexcept { return rank_; }
  int size() const noexcept { return static_cast<int>(segments_.size()); }

  /// Writes down a call for the others to see with the next publish(). Each call begins so, and
  /// takes the same number of publish() on every rank.
  void begin(const Call& call, WaitGuard& guard);

  /// Where a rank's data lie in the arena that it names.
  struct Place {
    std::uint64_t arena, offset;
  };
  /// Adds to the present call where its data lie, or that they lie nowhere that others see.
  void post_place(const std::optional<Place>& place);
  /// The place that `rank` has posted, once it has published it.
  std::optional<Place> posted_place(int rank) const;

  /// Whether begin() and then claim_slot() would not wait now.
  bool free_to_begin();

  /// Makes everything written so far visible to the others; gives this point's number, which is the
  /// same on all ranks that make the same call.
  Step publish();

  /// Until `rank` (or every rank) has published `step` of the current call. A rank that has made
  /// another call ends it: Error(CallMismatch).
  void wait_for(int rank, Step step, WaitGuard& guard);
  void wait_for_all(Step step, WaitGuard& guard);

  /// Waits for `rank` without sleeping, until `end` at most. Whether it has come; its call is then
  /// to be looked at by check_calls().
  bool wait_awake(int rank, Step step, Clock::time_point end);

  /// Compares what `rank` has called with this rank's own calls, the current one included:
  /// Error(CallMismatch). It must have come to the current call.
  void check_calls(int rank);

  /// This rank's next slot, once nobody reads its old contents any more. All ranks claim their
  /// slots in the same order, and release them when they have read all that they need of all
  /// ranks'.
  std::size_t claim_slot(WaitGuard& guard);
  void release_slot(std::size_t slot) { free_after_[slot] = step_ + 1; }

  std::byte* slot_of(int rank, std::size_t slot) const { return segment(rank).slots[slot]; }
  static constexpr std::size_t slot_bytes() { return Segment::kSlotBytes; }

  /// all_to_all: elements that `from` has for `to` in the current call.
  std::uint64_t pair_count(int from, int to) const;

 private:
  /// How long a rank waits awake: first without giving its processor away (not where ranks
  /// outnumber processors), then offering it to others, then it sleeps. A sleeper looks up now and
  /// then by itself, because the rank that should wake it may have been killed.
  static constexpr std::chrono::microseconds kSpin{2}, kAwake{50}, kSleep{20'000};

  Segment& segment(int rank) const {
    return *reinterpret_cast<Segment*>(segments_[rank].bytes().data());
  }
  bool reached(int rank, Step step);
  void sleep_for(int rank, Step step, WaitGuard& guard);
  // The first step of the call that all ranks must have begun before this one begins its next.
  Step lead_limit() const {
    return ends_[(calls_ + Segment::kCalls - Segment::kLead - 1) % Segment::kCalls];
  }
  void wait_until_free(Step step, WaitGuard& guard);

  const std::uint32_t group_;
  const int rank_;
  const std::vector<int> world_ranks_;
  const std::vector<net::SharedMemory> segments_;
  std::vector<net::Bell> bells_;  // of each rank
  const bool crowded_;            // more ranks than processors

  Step step_ = 0;
  std::uint64_t calls_ = 0;                                  // begun so far
  std::array<std::optional<Call>, Segment::kCalls> made_{};  // the last of them
  std::array<Step, Segment::kCalls> ends_{};                 // first step after each of them
  std::vector<Step> seen_;                                   // of each rank
  std::vector<std::uint64_t> checked_;                       // calls of each rank compared so far
  std::array<Step, Segment::kSlots> free_after_{};
  std::size_t next_slot_ = 0;
};

// The wait in shared memory of a call that its group watches.

class ChannelGuard : public WaitGuard {
 public:
  /// `channel` has the team's ranks.
  explicit ChannelGuard(Channel& channel) : channel_(channel) {}
  std::optional<Failure> still_waiting(int rank) override { return channel_.still_waiting(rank); }

 private:
  Channel& channel_;
};

// How bytes are divided among chunks and ranks.

inline std::size_t rounded_up(std::size_t value, std::size_t unit) {
  return (value + unit - 1) / unit * unit;
}

// `total` bytes in the fewest chunks of at most `most` bytes, all but the last of one length, which
// is whole cache lines and so whole elements.
struct Chunks {
  std::size_t total, length, number;

  Chunks(std::size_t total_bytes, std::size_t most) : total(total_bytes) {
    most = std::max(most / kLine * kLine, kLine);
    const std::size_t fewest = std::max<std::size_t>(1, (total + most - 1) / most);
    length = std::max(rounded_up((total + fewest - 1) / fewest, kLine), kLine);
    number = (total + length - 1) / length;
  }
  std::size_t begin(std::size_t k) const { return k * length; }
  std::size_t bytes(std::size_t k) const { return std::min(length, total - begin(k)); }
};

struct Range {
  std::size_t begin, bytes;
};

// Piece j of n of `bytes`, in whole lines.
inline Range piece_of(std::size_t bytes, int j, int n) {
  const auto ranks = static_cast<std::size_t>(n);
  const auto length = rounded_up((bytes + ranks - 1) / ranks, kLine);
  const auto begin = std::min(static_cast<std::size_t>(j) * length, bytes);
  return {begin, std::min(length, bytes - begin)};
}

/// Where each rank's part of a whole lies.
struct Parts {
  std::vector<Range> ranges;
  std::size_t longest = 0;

  Parts(const std::vector<std::size_t>& counts, std::size_t element) {
    std::size_t begin = 0;
    for (const std::size_t count : counts) {
      ranges.push_back({begin, count * element});
      begin += count * element;
      longest = std::max(longest, count * element);
    }
  }
  /// The parts of a call that cuts its data into as many parts as there are ranks.
  Parts(const Call& call, int ranks)
      : Parts(call.part_counts.empty()
                  ? std::vector<std::size_t>(static_cast<std::size_t>(ranks), call.count)
                  : call.part_counts,
              size_of(call.dtype)) {}

  /// The part of chunk k that belongs to rank r, as a range of the whole.
  Range of_chunk(const Chunks& chunks, std::size_t k, std::size_t r) const {
    const Range& part = ranges[r];
    const std::size_t begin = std::min(chunks.begin(k), part.bytes);
    return {part.begin + begin, std::min(chunks.length, part.bytes - begin)};
  }
};

/// How `bytes` are cut into `number` lanes of which the last may be shorter, and these into chunks:
/// the same wherever these two numbers are.
struct Lanes {
  std::size_t bytes;
  int number;

  Range lane(int j) const { return piece_of(bytes, j, number); }
  /// The longest lane's.
  std::size_t length() const { return lane(0).bytes; }
  std::size_t chunk_bytes() const {
    return ShmTeam::slot_bytes() / static_cast<std::size_t>(number) / kLine * kLine;
  }
  /// One at least, so that every call has its steps.
  std::size_t chunks() const {
    return std::max<std::size_t>(1, (length() + chunk_bytes() - 1) / chunk_bytes());
  }
};

/// For one call on one rank of a team of two ranks or more, made once the call has begun there.
/// Every rank of the team calls the same functions in the same order.
class LaneReduction {
 public:
  /// `data` is this rank's, and cut by `lanes`, which are no more than the team's ranks. avg adds,
  /// as sum does.
  LaneReduction(ShmTeam& team, std::span<std::byte> data, const Lanes& lanes, DType dtype,
                ReduceOp op, WaitGuard& guard);

  /// Chunks [first, last) of this rank's lane become the reduction over the team. The other lanes'
  /// data has been read by then.
  void reduce(std::size_t first, std::size_t last);

  /// Copies chunks [first, last) of each lane from the lane's owner.
  void spread(std::size_t first, std::size_t last);

 private:
  struct Step {
    std::size_t slot;
    ShmTeam::Step step;
  };

  // For each chunk: write(k, own slot), a step, and one chunk later read(k, slot, step).
  template <typename Write, typename Read>
  void stream(std::size_t first, std::size_t last, Write write, Read read);

  bool owner() const { return team_.rank() < lanes_.number; }
  std::span<std::byte> chunk(std::size_t k, int lane) const;
  std::byte* place(int rank, std::size_t slot, int lane) const;
  void copy_in(std::size_t slot, std::size_t k, int lane);

  ShmTeam& team_;
  const std::span<std::byte> data_;
  const Lanes lanes_;
  const DType dtype_;
  const ReduceOp op_;
  WaitGuard& guard_;
};

}  // namespace bimetal::comm

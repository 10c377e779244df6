#pragma once
// Ranks of one host that meet in shared memory. Every rank counts its steps, all ranks take the
// same steps in a call, and each waits only for the others' counts. So nothing is locked. The
// collectives use it (short_call.h, pipeline.h). docs/shared_memory.md has the whole scheme.

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
  /// What `rank` has added to it, once it has published that.
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
  /// slots in the same order, and release them when they have read what they need of all ranks'.
  std::size_t claim_slot(WaitGuard& guard);
  void release_slot(std::size_t slot) { free_after_[slot] = step_ + 1; }

  std::byte* slot_of(int rank, std::size_t slot) const { return segment(rank).slots[slot]; }
  static constexpr std::size_t slot_bytes() { return Segment::kSlotBytes; }

  /// all_to_all: elements that `from` has for `to` in the current call.
  std::uint64_t pair_count(int from, int to) const;

 private:
  /// How long a rank waits awake: first without giving its processor away (not where ranks
  /// outnumber processors), then offering it to others, then it sleeps. A sleeper looks up now and
  /// then by itself, for whoever should wake it may have been killed.
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

}  // namespace bimetal::comm

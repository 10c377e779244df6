#pragma once
// Which replica of a stage computes which micro-batch, if the number of replicas differs by stage.
// One rank may feed two that share the next stage. A pure function, so that every rank knows the
// senders and receivers.

#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "bimetal/parallel/schedule/schedule.h"

namespace bimetal::parallel::schedule {

/// By stage and replica: the time for a sample, in any unit.
using ReplicaSeconds = std::vector<std::vector<double>>;

/// The seconds of a replica that is to get nothing, if another of its stage takes less.
inline constexpr double kNeverSeconds = std::numeric_limits<double>::max() / 1e9;

/// A value.
class Deal {
 public:
  /// `samples`: those of each micro-batch. Micro-batches of 0 samples are nobody's, and nobody
  /// waits for them. Each stage deals each of the others to the replica that would finish it first,
  /// and each replica gets its part at even distances. Seconds count if all of a stage are above 0;
  /// otherwise its replicas are equals. A replica may get nothing. Error(InvalidArgument) for a
  /// stage without replicas.
  Deal(const ReplicaSeconds& seconds, std::span<const std::int64_t> samples);
  /// The same for replicas that are equals: `widths` says of each stage how many there are.
  Deal(std::span<const int> widths, std::span<const std::int64_t> samples);

  int stages() const noexcept { return static_cast<int>(of_.size()); }
  int micro_batches() const noexcept { return static_cast<int>(samples_.size()); }
  /// -1: nobody's.
  int replica(int stage, int micro_batch) const {
    return of_[static_cast<std::size_t>(stage)][static_cast<std::size_t>(micro_batch)];
  }
  /// Samples of a step that a replica computes.
  std::int64_t samples(int stage, int replica) const;

  /// A replica's actions: its own part of its stage's schedule. The schedule keeps as many
  /// micro-batches under way as the replicas of this stage and those behind it need to be busy, two
  /// for each replica at most. An order that every stage follows cannot deadlock. So replicas that
  /// each do a part of it cannot either. Errors: those of require_possible().
  std::vector<Action> actions(Kind kind, int chunks, int stage, int replica) const;
  /// The most micro-batches of one chunk whose activations it has at a time.
  int in_flight(Kind kind, int stage, int replica) const;

 private:
  void deal_stage(const std::vector<double>& seconds);

  std::vector<std::int64_t> samples_;
  std::vector<std::vector<int>> of_;  ///< by stage, by micro-batch
  std::vector<int> windows_;          ///< empty: every stage has one replica
};

/// 1 for each replica.
ReplicaSeconds seconds_of_equals(std::span<const int> widths);

}  // namespace bimetal::parallel::schedule

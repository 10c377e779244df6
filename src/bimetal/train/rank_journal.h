#pragma once
// The journal of ranks that reduce their gradients: what each has done is summed from the figures
// that they exchange in every step.

#include <chrono>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "bimetal/balance/balancer.h"
#include "bimetal/comm/group.h"
#include "bimetal/data/batch_feed.h"
#include "bimetal/progress/journal.h"
#include "bimetal/train/collective_update.h"
#include "bimetal/train/pipeline/lanes.h"

namespace bimetal::train {

/// What each rank would do alone, in samples per second, as far as is known.
std::vector<double> alone_rates(const balance::Balancer& balancer);

/// Holds the same figures on every rank, but for this rank's own clock. Use from one thread.
class RankJournal {
 public:
  /// `balancer` must outlive it, and has observed nothing yet; it deals with `lanes`.
  RankJournal(const balance::Balancer& balancer, const Lanes& lanes, balance::Policy policy,
              const progress::Journal::Plan& plan);

  /// See ProgressMeter::start.
  void start_clock() { journal_.start_clock(); }

  /// A step that was discarded.
  void add_repeated(const StepResult& result);

  /// Step number `step` was applied.
  progress::Progress add(std::int64_t step, const data::BatchFeed::Plan& plan,
                         const StepResult& result);

  /// Of the parameters after step number `step`.
  void add_evaluation(std::int64_t step, const progress::Evaluation& evaluation) {
    journal_.add_evaluation(step, evaluation);
  }

  /// Gathers what only each rank knows. Collective.
  progress::Report report(comm::Group group, std::int64_t steps, const std::string& host,
                          const std::string& device, std::chrono::milliseconds timeout) const;

 private:
  void keep_for_replay(std::span<const progress::RankFigures> figures);
  std::vector<double> expected_alone() const;

  const balance::Balancer& balancer_;
  Lanes lanes_;
  progress::Journal journal_;
  progress::BalanceRecord record_;
  std::vector<progress::WorkerTotals> totals_;         ///< by rank
  double communicate_seconds_ = 0, wait_seconds_ = 0;  ///< of this rank
};

}  // namespace bimetal::train

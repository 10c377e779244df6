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
#include "bimetal/data/prefetch.h"
#include "bimetal/progress/journal.h"
#include "bimetal/train/collective_update.h"
#include "bimetal/train/replicas.h"

namespace bimetal::train {

/// What each rank would do alone, in samples per second, as far as is known.
std::vector<double> alone_rates(const balance::Balancer& balancer);

/// Who trains, or has trained: a rank, or the ranks that stand for one device.
struct Member {
  progress::WorkerPlace place = {};
  progress::WorkerTotals totals = {};
};

/// What a run writes down, whoever trains.
struct RunJournal {
  explicit RunJournal(const progress::RunPlan& plan)
      : global_batch(plan.global_batch), journal(plan) {}

  std::int64_t global_batch;
  progress::Journal journal;
  std::vector<Member> members;  ///< by number, which each keeps
};

/// What the ranks of a group add to it. Holds the same figures on every rank, but for this rank's
/// own clock. Use from one thread.
class RankJournal {
 public:
  /// `balancer` and `run` must outlive it; the balancer has observed nothing yet, and deals with
  /// `lanes`. `numbers`: of the ranks among the members. None: each rank has its own, and all are
  /// new.
  RankJournal(const balance::Balancer& balancer, const Lanes& lanes, balance::Policy policy,
              RunJournal& run, std::vector<int> numbers = {});

  /// See ProgressMeter::start.
  void start_clock() { run_.journal.start_clock(); }

  /// A step that was discarded.
  void add_repeated(const StepResult& result);

  /// Step number `step` was applied.
  progress::Progress add(std::int64_t step, const data::BatchFeed::Plan& plan,
                         const StepResult& result);

  /// Of the parameters after step number `step`.
  void add_evaluation(std::int64_t step, const progress::Evaluation& evaluation) {
    run_.journal.add_evaluation(step, evaluation);
  }

  /// Gathers what only each rank knows; the workers of the group come first, by rank, and then
  /// those who have left. Collective.
  progress::Report report(comm::Group group, std::int64_t steps,
                          std::chrono::milliseconds timeout) const;

 private:
  void keep_for_replay(std::span<const progress::RankFigures> figures);
  std::vector<double> expected_alone() const;
  progress::WorkerTotals& totals_of(std::size_t rank) const {
    return run_.members[static_cast<std::size_t>(numbers_[rank])].totals;
  }

  const balance::Balancer& balancer_;
  Lanes lanes_;
  RunJournal& run_;
  std::vector<int> numbers_;  ///< by rank
  progress::BalanceRecord record_;
  std::vector<progress::WorkerTotals> before_;         ///< by rank: what it had done when it began
  double communicate_seconds_ = 0, wait_seconds_ = 0;  ///< of this rank
};

}  // namespace bimetal::train

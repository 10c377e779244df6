#pragma once
// The journal of ranks that reduce their gradients: each rank's totals are summed from the figures
// that they exchange in every step.

#include <chrono>
#include <cstdint>
#include <exception>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "bimetal/balance/balancer.h"
#include "bimetal/balance/shares.h"
#include "bimetal/base/error.h"
#include "bimetal/comm/group.h"
#include "bimetal/data/prefetch.h"
#include "bimetal/progress/journal.h"
#include "bimetal/progress/observer.h"
#include "bimetal/progress/worker_summary.h"
#include "bimetal/train/collective_update.h"
#include "bimetal/train/replicas.h"

namespace bimetal::train {

/// Each rank's speed alone, in samples per second, as far as it is known.
std::vector<double> alone_rates(const balance::Balancer& balancer);

/// A member that trains, or has trained: a rank, or the ranks that stand for one device.
struct Member {
  progress::WorkerPlace place = {};
  progress::WorkerTotals totals = {};
};

/// A run's journal, whichever ranks train.
struct RunJournal {
  explicit RunJournal(const progress::RunPlan& plan)
      : global_batch(plan.global_batch), journal(plan) {}

  std::int64_t global_batch;
  progress::Journal journal;
  std::vector<Member> members;  ///< by number, which each keeps
};

/// The entries that the ranks of a group add to it. It holds the same figures on every rank, except
/// for this rank's own clock. Use from one thread.
class RankJournal {
 public:
  /// `balancer` and `run` must outlive it; the balancer has observed nothing yet, and deals with
  /// `lanes`. `numbers`: those of the ranks among the members. None: each rank has its own, and all
  /// are new.
  RankJournal(const balance::Balancer& balancer, const Lanes& lanes, balance::Policy policy,
              RunJournal& run, std::vector<int> numbers = {});

  /// See ProgressMeter::start.
  void start_clock() { run_.journal.start_clock(); }

  /// A step that was discarded.
  void add_repeated(const StepResult& result);

  /// Step number `step` was applied.
  progress::Progress add(std::int64_t step, const data::BatchFeed::Plan& plan,
                         const StepResult& result);

  /// The parameters evaluated are those after step number `step`.
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
  std::vector<progress::WorkerTotals> before_;         ///< by rank: its totals when it began
  double communicate_seconds_ = 0, wait_seconds_ = 0;  ///< of this rank
};

// Texts for users on an exception that is not the project's own.

/// The error that says in one line what ended `who` ("rank 3"): OutOfMemory, Unsupported for an
/// operation without a deterministic kernel, or else Internal. `rank`: whom it names. To be called
/// where the exception is caught.
Error error_of(const std::exception& exception, const std::string& who, std::optional<int> rank);

// Texts for people on a batch that did not fit.

/// The remedy for a rank's lack of memory, for people to read. `cap`: most that it gets from now
/// on.
std::string remedy(const progress::RankFigures& rank, std::int64_t cap);

// Tells of ranks that are left without work, once each time.

/// Use from one thread.
class IdleRanks {
 public:
  /// A notice for each rank without samples in `shares` that had some in those before.
  void tell(const balance::Shares& shares, std::int64_t global_batch, progress::Observer& observer);

 private:
  std::vector<bool> idle_;
};

}  // namespace bimetal::train

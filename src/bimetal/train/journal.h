#pragma once
// What a run writes down about itself as it goes: rates, losses, history; and the report made of
// it.

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "bimetal/balance/shares.h"
#include "bimetal/comm/group.h"
#include "bimetal/train/batch_feed.h"
#include "bimetal/train/history.h"
#include "bimetal/train/observer.h"
#include "bimetal/train/progress_meter.h"
#include "bimetal/train/report.h"
#include "bimetal/train/step.h"

namespace bimetal::train {

/// Holds the same figures on every rank, but for this rank's own clock. Use from one thread.
class Journal {
 public:
  struct Plan {
    std::int64_t epochs = 0;
    std::int64_t steps = 0;  ///< optimizer steps planned in all
    std::int64_t global_batch = 0;
  };

  Journal(int ranks, Plan plan) : plan_(plan), meter_(ranks) {}

  /// See ProgressMeter::start.
  void start_clock() { meter_.start(); }

  /// A step that was discarded.
  void add_repeated(const StepResult& result);

  /// Step number `step` was applied. `alone`: the balancer's rate of each rank; `next`: the shares
  /// now decided.
  Progress add(std::int64_t step, const BatchFeed::Plan& plan, const StepResult& result,
               std::span<const double> alone, const balance::Shares& next);

  /// Of the parameters after step number `step`.
  void add_evaluation(std::int64_t step, double accuracy) {
    evaluations_.push_back({step, meter_.elapsed_seconds(), accuracy});
  }

  /// Gathers what only each rank knows. Collective.
  Report report(comm::Group group, std::int64_t steps, const std::string& host,
                const std::string& device, std::span<const double> alone,
                std::chrono::milliseconds timeout) const;

 private:
  void add_times(const StepResult& result);
  std::vector<WorkerTotals> totals(std::span<const RankFigures> figures) const;

  Plan plan_;
  ProgressMeter meter_;
  History history_;
  double communicate_seconds_ = 0, wait_seconds_ = 0;
  double epoch_loss_sum_ = 0;
  std::int64_t epoch_samples_ = 0;
  std::vector<EvaluationPoint> evaluations_;
};

}  // namespace bimetal::train

#pragma once
// What a run writes down about itself as it goes: rates, losses, history; and the report made of
// it, whatever carries the gradients.

#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "bimetal/progress/observer.h"
#include "bimetal/progress/progress_meter.h"
#include "bimetal/progress/report.h"
#include "bimetal/progress/thinned.h"

namespace bimetal::progress {

/// A run's history, for pictures.
using History = Thinned<HistoryPoint>;

/// A step that has changed the parameters.
struct StepDone {
  std::int64_t number = 0;  ///< optimizer steps done, this one included
  std::int64_t epoch = 0;   ///< from 0
  std::int64_t weight = 0;  ///< of the samples that the loss is of
  double loss_sum = 0;
  std::vector<std::int64_t> shares = {};  ///< of the next step, by worker
};

/// A worker at the run's end.
struct WorkerAtEnd {
  int number = 0;
  WorkerPlace place = {};
  WorkerState state = {};
};

struct RunPlan {
  std::int64_t epochs = 0;
  std::int64_t steps = 0;          ///< optimizer steps planned in all
  std::int64_t global_batch = 0;   ///< its weight on average
  std::string counts = "samples";  ///< what weights count: "images", "tokens"
};

/// What a run tells after a step, which `meter` counts. `workers`: by number, as they are after it.
Progress progress_after(const StepDone& step, const RunPlan& plan,
                        std::span<const WorkerState> workers, ProgressMeter& meter);

/// Use from one thread.
class Journal {
 public:
  explicit Journal(RunPlan plan) : plan_(std::move(plan)) {}

  /// See ProgressMeter.
  void start_clock() { meter_.start(); }
  void stop_clock() { meter_.stop(); }
  double elapsed_seconds() const noexcept { return meter_.elapsed_seconds(); }
  void go_on(double elapsed_s, std::span<const WorkerTotals> totals) {
    meter_.go_on(elapsed_s, totals);
  }

  /// A step that was discarded.
  void add_repeated() { meter_.count_repeated(); }

  /// `workers`: by number, as they are after it.
  Progress add(const StepDone& step, std::span<const WorkerState> workers);

  /// Of the parameters after step number `step`.
  void add_evaluation(std::int64_t step, const Evaluation& evaluation) {
    evaluations_.push_back({step, elapsed_seconds(), evaluation.metrics, evaluation.data});
  }

  void add_change(MembersChange change) { changes_.push_back(std::move(change)); }
  const std::vector<MembersChange>& changes() const noexcept { return changes_; }

  /// After `steps` optimizer steps, in `elapsed_s` of this journal or of the slowest rank's.
  Report report(std::int64_t steps, std::span<const WorkerAtEnd> workers, double elapsed_s) const;

 private:
  RunPlan plan_;
  ProgressMeter meter_;
  History history_;
  std::int64_t epoch_ = -1, epoch_weight_ = 0;
  double epoch_loss_sum_ = 0;
  std::vector<EvaluationPoint> evaluations_;
  std::vector<MembersChange> changes_;
};

}  // namespace bimetal::progress

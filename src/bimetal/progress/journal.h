#pragma once
// A run's journal: rates, losses and history, and the report made of it, whatever carries the
// gradients.
//
// How fast the job runs: samples per second, and efficiency, which is that rate divided by the sum
// of the devices' rates alone (docs/balance.md). The one definition of both.
//
// A series of points of bounded size, however long it gets.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "bimetal/base/deadline.h"
#include "bimetal/progress/observer.h"
#include "bimetal/progress/report.h"

namespace bimetal::progress {

/// Keeps every point until there are kMostPoints, then every second one, every fourth…
template <typename Point, std::size_t kMostPoints = 2000>
class Thinned {
 public:
  static constexpr std::size_t kMost = kMostPoints;

  void add(Point point) {
    if (added_++ % stride_ != 0) return;
    if (points_.size() == kMost) {
      for (std::size_t i = 0; i < kMost / 2; ++i) points_[i] = std::move(points_[2 * i]);
      points_.resize(kMost / 2);
      stride_ *= 2;
    }
    points_.push_back(std::move(point));
  }

  std::vector<Point> take() && { return std::move(points_); }
  const std::vector<Point>& points() const noexcept { return points_; }

 private:
  std::vector<Point> points_;
  std::int64_t stride_ = 1;
  std::int64_t added_ = 0;
};

// Whether the training loss gets on, by the means of spans of steps.

/// Sees a run's losses step by step and says once, in words, that they rise again, or that they
/// have not begun to fall. Not thread-safe.
class LossTrend {
 public:
  static constexpr int kSpan = 25;      ///< steps whose losses are averaged: batches are not alike
  static constexpr int kPatience = 16;  ///< spans in which a new training must have begun to learn

  /// `fresh`: whether the run begins with untrained parameters; others may have learnt all there
  /// is.
  explicit LossTrend(bool fresh) : fresh_(fresh) {}

  /// The mean loss of a step; one that is not finite is passed over. Returns the trouble, if it has
  /// just become clear: two spans in a row above the least one by a quarter of it and a tenth of
  /// the first step's loss, or a mean of all spans that is not 3 % below that.
  std::optional<std::string> add(double loss);

 private:
  std::optional<std::string> close_span(double mean);

  bool fresh_, told_ = false;
  std::optional<double> first_;
  double sum_ = 0, least_ = 0, sum_of_means_ = 0;
  std::int64_t counted_ = 0, spans_ = 0, risen_ = 0;
};

/// Tells `observer` of a step and, in a notice, if the loss does not fall, with advice.
void tell_step(const Progress& progress, LossTrend& trend, Observer& observer);

/// A worker's state after a step.
struct WorkerState {
  WorkerTotals totals = {};
  bool here = true;           ///< it still takes part
  double expected_alone = 0;  ///< samples/s by itself, as long as it has computed nothing
};

struct Rates {
  double samples_per_s = 0;
  double efficiency = 0;
  std::vector<double> alone;  ///< per worker: its samples ÷ its own compute seconds
};

/// Over all of a run's `seconds`, with those who have left.
Rates rates_over(double seconds, std::span<const WorkerState> workers);

/// Use from one thread.
class ProgressMeter {
 public:
  /// Training begins, or goes on: the time since the last step does not count. To be called after
  /// start-up, evaluation and checkpoints.
  void start();
  /// Time passes without training until the next start().
  void stop();

  /// Takes over the counts of others so far: `elapsed_s`, and each worker's totals, by number.
  void go_on(double elapsed_s, std::span<const WorkerTotals> totals);

  /// A step has ended, after which the workers, by number, have done so much.
  void count(std::span<const WorkerState> workers);
  /// A step is to be repeated: its time counts, its samples do not.
  void count_repeated() { pass_time(); }

  double elapsed_seconds() const noexcept { return elapsed_; }

  /// Over the last few seconds, of those who are here.
  Rates recent(std::span<const WorkerState> workers) const;

 private:
  void pass_time();

  bool running_ = false;
  Stopwatch since_last_;
  double elapsed_ = 0;
  // "Recent" is the sums of all steps, which weigh less the longer ago they were.
  double recent_seconds_ = 0;
  struct Recent {
    double samples = 0, compute_seconds = 0;
    WorkerTotals counted = {};
  };
  std::vector<Recent> recent_;
};

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

/// The progress that a run reports after a step, which `meter` counts. `workers`: by number, as
/// they are after it.
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

  /// The parameters evaluated are those after step number `step`.
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

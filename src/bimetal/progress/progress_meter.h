#pragma once
// How fast the job runs: samples per second, and efficiency, which is that rate divided by the sum
// of what the devices would do alone (docs/balance.md). The one definition of both.

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "bimetal/base/deadline.h"
#include "bimetal/progress/observer.h"

namespace bimetal::progress {

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

  /// The mean loss of a step; one that is not finite is passed over. What is wrong, if that has
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

/// Tells `observer` of a step and, in a notice, where the loss does not get on, with what may help.
void tell_step(const Progress& progress, LossTrend& trend, Observer& observer);

/// What is known of a worker after a step.
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

  /// Others have counted so far: `elapsed_s`, and what each worker, by number, has done.
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

}  // namespace bimetal::progress

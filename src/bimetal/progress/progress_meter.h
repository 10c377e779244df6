#pragma once
// How fast the job runs: samples per second, and efficiency, which is that rate divided by the sum
// of what the devices would do alone (docs/balance.md). The one definition of both.

#include <cstdint>
#include <span>
#include <vector>

#include "bimetal/base/stopwatch.h"
#include "bimetal/progress/observer.h"

namespace bimetal::progress {

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

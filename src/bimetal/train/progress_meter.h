#pragma once
// How fast the job runs: samples per second, and efficiency, which is that rate divided by the sum
// of what the devices would do alone (docs/balance.md).

#include <cstdint>
#include <span>
#include <vector>

#include "bimetal/base/stopwatch.h"
#include "bimetal/train/rank_figures.h"

namespace bimetal::train {

struct Rates {
  double samples_per_s = 0;
  double efficiency = 0;
  std::vector<double> alone;  ///< per rank: its samples ÷ its own compute seconds
};

/// Use from one thread.
class ProgressMeter {
 public:
  explicit ProgressMeter(int ranks);

  /// Training begins, or goes on: the time since the last step does not count. To be called after
  /// start-up, evaluation and checkpoints.
  void start();

  /// A step has ended. Time spent on a repeated step counts; its samples do not.
  void count(std::span<const RankFigures> figures, bool applied);

  double elapsed_seconds() const noexcept { return whole_.seconds; }
  std::int64_t samples(int rank) const;
  double compute_seconds(int rank) const;

  /// Over all steps, and over the last few seconds. A rank that has computed nothing is given
  /// `predicted_alone[rank]`, the balancer's estimate.
  Rates whole_run(std::span<const double> predicted_alone) const;
  Rates recent(std::span<const double> predicted_alone) const;

 private:
  struct Tally {
    double seconds = 0;
    std::vector<double> samples, compute_seconds;  // per rank

    void fade(double factor);
    Rates rates(std::span<const double> predicted_alone) const;
  };

  Tally whole_, recent_;
  Stopwatch since_last_;
};

}  // namespace bimetal::train

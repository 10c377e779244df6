#pragma once
// How long a device takes for a batch: t(b) = α + β·b, fitted online. docs/balance.md derives it.
// Pure: no clock, no threads, no I/O; equal inputs give equal outputs on every rank.

#include <cstdint>

namespace bimetal::balance {

/// Two things are followed apart from each other. The *speed* is an exponentially forgetting mean
/// of the times. The *shape*, α ÷ β, is what prior and earlier steps said until successive steps
/// with batches of different sizes say otherwise (recursive least squares on their differences): a
/// device that becomes slower, or one whose times vary, says nothing about it. α and β stay ≥ 0.
///
/// An outlier (a paused process, a page-in) is damped: it counts as no more than a bound that grows
/// with the device's usual noise. A lasting change of speed is found by a cumulative sum (Page,
/// "Continuous inspection schemes", 1954), which then forgets the speed from before the change.
class CostModel {
 public:
  CostModel() = default;

  /// Starts from a probe: `alpha` seconds per step, `beta` seconds per sample, both finite and ≥ 0
  /// and not both 0; otherwise Error(InvalidArgument).
  CostModel(double alpha, double beta);

  /// One step's compute time, without waiting. batch > 0, seconds > 0; others are ignored.
  void observe(std::int64_t batch, double seconds);

  /// For so many samples.
  double seconds(double batch) const noexcept { return alpha_ + beta_ * batch; }
  double alpha() const noexcept { return alpha_; }  ///< seconds whatever the batch
  double beta() const noexcept { return beta_; }    ///< seconds per sample

  /// Samples per second at a given batch; 0 while nothing is known.
  double rate(std::int64_t batch) const noexcept;

  /// True once a probe or an observation has been seen.
  bool known() const noexcept { return known_; }

  /// Usual relative distance of an observation from its prediction.
  double noise() const noexcept { return state_.noise; }

  /// How far seconds() may be off by that noise, relative.
  double uncertainty() const noexcept;

  /// True while the latest observations may be outliers or the beginning of a lasting change; a
  /// few more tell.
  bool unsettled() const noexcept;

  /// True as soon as the latest observation says "slower" or "faster" at all.
  bool contradicted() const noexcept { return slower_.sum > 0.0 || faster_.sum > 0.0; }

 private:
  struct Observation {
    double batch = 0.0, seconds = 0.0;
  };

  /// Weighted means of batch and seconds.
  struct Means {
    double weight = 0.0, batch = 0.0, seconds = 0.0;

    void add(Observation observed, double w) noexcept;
  };

  /// Evidence that the device has become slower (or faster) than predicted.
  struct Drift {
    double sum = 0.0;
    Means since;           ///< observations since the evidence began
    double squares = 0.0;  ///< Σ (seconds − their mean)²

    void add(double evidence, Observation observed) noexcept;
    double noise() const noexcept;  ///< relative noise of the times since
  };

  /// The state that a lasting change of speed replaces: the line through the means that has the
  /// shape.
  struct State {
    Means means;
    double noise = 0.0;
    double shape_alpha = 0.0, shape_beta = 1.0;  ///< only their proportion is used
    double shape_evidence = 0.0;                 ///< 1 ÷ variance of that, see elasticity

    double scale() const noexcept;
    double seconds(double batch) const noexcept;
  };

  double elasticity(double batch) const noexcept;
  void change_to(const Drift& drift) noexcept;
  void learn_shape(Observation observed, double bound) noexcept;
  void refit() noexcept;

  double alpha_ = 0.0, beta_ = 0.0;
  bool known_ = false;
  State state_;
  State calm_;        ///< before the evidence of a change began
  State before_;      ///< of the last speed that held for long
  Observation last_;  ///< the observation before; none while its batch is 0
  Drift slower_, faster_;
};

}  // namespace bimetal::balance

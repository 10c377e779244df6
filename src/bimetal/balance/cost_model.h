#pragma once
// How long a device takes for a batch: t(b) = α + β·b, fitted online. docs/balance.md derives it.
// Pure: no clock, no threads, no I/O; equal inputs give equal outputs on every rank.

#include <cstdint>

namespace bimetal::balance {

/// Exponentially forgetting least squares of seconds on batch size, with a prior.
///
/// While all observed batches are alike, α and β cannot be told apart; the prior's proportion of α
/// to β is kept then and the speed follows. Both stay ≥ 0. An outlier (a paused process, a page-in)
/// is damped: it counts as no more than a bound that grows with the device's usual noise.
/// A lasting change is found by a cumulative sum (Page, "Continuous inspection schemes", 1954),
/// which then forgets everything from before the change.
class CostModel {
 public:
  CostModel() = default;

  /// Starts from a probe: `alpha` seconds per step, `beta` seconds per sample, both finite and ≥ 0
  /// and not both 0; otherwise Error(InvalidArgument).
  CostModel(double alpha, double beta);

  /// One step's compute time, without waiting. batch > 0, seconds > 0; others are ignored.
  void observe(std::int64_t batch, double seconds);

  double seconds(double batch) const noexcept { return alpha_ + beta_ * batch; }
  double alpha() const noexcept { return alpha_; }
  double beta() const noexcept { return beta_; }

  /// Samples per second at a given batch; 0 while nothing is known.
  double rate(std::int64_t batch) const noexcept;

  /// True once a probe or an observation has been seen.
  bool known() const noexcept { return known_; }

  /// Usual relative distance of an observation from its prediction.
  double noise() const noexcept { return noise_; }

  /// How far seconds() may be off by that noise, relative.
  double uncertainty() const noexcept;

  /// True while the latest observations may be outliers or the beginning of a lasting change; a
  /// few more tell.
  bool unsettled() const noexcept;

 private:
  /// Weighted moments of (batch, seconds), updated without cancellation (West 1979).
  struct Moments {
    double weight = 0.0, batch = 0.0, seconds = 0.0;  ///< total weight and the means
    double batch_variance = 0.0, covariance = 0.0;    ///< sums of weighted products

    void add(double b, double s, double w) noexcept;
    void forget(double factor) noexcept;
  };

  /// Evidence that the device has become slower (or faster) than predicted.
  struct Drift {
    double sum = 0.0;
    Moments since;  ///< what was observed since the evidence began

    void add(double evidence, double batch, double seconds) noexcept;
  };

  void refit() noexcept;

  double alpha_ = 0.0, beta_ = 0.0;
  double prior_alpha_ = 0.0, prior_beta_ = 1.0;  ///< only their proportion is used
  bool known_ = false;
  double noise_ = 0.0;
  Moments moments_;
  Drift slower_, faster_;
};

}  // namespace bimetal::balance

#pragma once
// How long a device takes for a batch: t(b) = α + β·b, fitted online. docs/balance.md derives it.
// Pure: no clock, no threads, no I/O; equal inputs give equal outputs on every rank.

#include <cstdint>

namespace bimetal::balance {

/// Exponentially forgetting least squares of seconds on batch size, with a prior.
///
/// While all observed batches are alike, α and β cannot be told apart; the prior's α is kept then
/// and β follows. Both stay ≥ 0. A single outlier (a paused process, a page-in) is damped: an
/// observation is clipped to a factor of the prediction until several in a row agree.
class CostModel {
 public:
  CostModel() = default;

  /// Starts from a probe: `alpha` seconds per step, `beta` seconds per sample.
  CostModel(double alpha, double beta);

  /// One step's compute time, without waiting. batch > 0, seconds > 0; others are ignored.
  void observe(std::int64_t batch, double seconds);

  double seconds(double batch) const noexcept { return alpha_ + beta_ * batch; }
  double alpha() const noexcept { return alpha_; }
  double beta() const noexcept { return beta_; }

  /// Samples per second at a given batch.
  double rate(std::int64_t batch) const noexcept;

  /// True once a probe or an observation has been seen.
  bool known() const noexcept { return known_; }

 private:
  double alpha_ = 0.0;
  double beta_ = 0.0;
  bool known_ = false;
  double weight_ = 0.0, mean_batch_ = 0.0, mean_seconds_ = 0.0, var_batch_ = 0.0, cov_ = 0.0;
  int outliers_in_a_row_ = 0;
};

}  // namespace bimetal::balance

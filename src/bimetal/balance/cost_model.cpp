#include "bimetal/balance/cost_model.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "bimetal/base/error.h"

namespace bimetal::balance {
namespace {

// docs/balance.md, "Fitting", gives the reasons for these numbers.
constexpr double kMemory = 0.98;       // what an observation weighs after one more step
constexpr double kPriorWeight = 4.0;   // observations that a probe is worth
constexpr double kPriorSpread = 0.15;  // batches varying by this part of their mean outweigh it
constexpr double kLeastSlope = 0.05;   // of the prior's slope

constexpr double kNoiseMemory = 0.95;   // as kMemory, for the usual noise
constexpr double kLeastBound = 0.1;     // outliers are damped to this distance, or to
constexpr double kNoisesToBound = 2.0;  // so many times the usual noise

constexpr double kTolerance = 0.08;       // a distance that is never evidence of another speed
constexpr double kLargestEvidence = 0.2;  // of one observation
constexpr double kProof = 0.55;           // so that two outliers never suffice but three do
constexpr double kSuspicion = 0.25;

/// Relative distance on a scale on which twice as fast and twice as slow are equally far.
double surprise(double seconds, double predicted) {
  return seconds >= predicted ? seconds / predicted - 1.0 : 1.0 - predicted / seconds;
}

/// The time that lies `surprise` away from the prediction.
double surprising_time(double surprise, double predicted) {
  return surprise >= 0.0 ? predicted * (1.0 + surprise) : predicted / (1.0 - surprise);
}

}  // namespace

CostModel::CostModel(double alpha, double beta)
    : alpha_(alpha), beta_(beta), prior_alpha_(alpha), prior_beta_(beta), known_(true) {
  if (!(std::isfinite(alpha) && std::isfinite(beta) && alpha >= 0.0 && beta >= 0.0 &&
        alpha + beta > 0.0)) {
    throw Error(ErrorCode::InvalidArgument,
                fmt::format("a device cannot take {} s per step and {} s per sample", alpha, beta));
  }
}

double CostModel::rate(std::int64_t batch) const noexcept {
  if (!known_ || batch <= 0) return 0.0;
  const auto samples = static_cast<double>(batch);
  return samples / seconds(samples);
}

void CostModel::observe(std::int64_t batch, double seconds) {
  if (batch <= 0 || !std::isfinite(seconds) || seconds <= 0.0) return;
  const auto b = static_cast<double>(batch);
  if (!known_) {
    known_ = true;
    moments_.add(b, seconds, 1.0);
    refit();
    return;
  }
  const double predicted = this->seconds(b);
  if (moments_.weight == 0.0) moments_.add(b, predicted, kPriorWeight);

  const double distance = surprise(seconds, predicted);
  const double bound = std::max(kLeastBound, kNoisesToBound * noise_);
  const double damped = std::clamp(distance, -bound, bound);
  moments_.forget(kMemory);
  moments_.add(b, surprising_time(damped, predicted), 1.0);

  const double tolerance = std::max(kTolerance, noise_);
  slower_.add(std::min(distance - tolerance, kLargestEvidence), b, seconds);
  faster_.add(std::min(-distance - tolerance, kLargestEvidence), b, seconds);
  const double most = tolerance + kLargestEvidence;
  noise_ += (1.0 - kNoiseMemory) * (std::min(std::abs(distance), most) - noise_);

  for (const Drift& drift : {slower_, faster_}) {
    if (drift.sum < kProof) continue;
    moments_ = drift.since;
    slower_ = faster_ = Drift{};
  }
  refit();
}

double CostModel::uncertainty() const noexcept {
  return noise_ / std::sqrt(std::max(1.0, moments_.weight));
}

bool CostModel::unsettled() const noexcept {
  return std::max(slower_.sum, faster_.sum) >= kSuspicion;
}

void CostModel::refit() noexcept {
  // The line through the mean with the prior's proportion of α to β.
  const double prior_seconds = prior_alpha_ + prior_beta_ * moments_.batch;
  const double prior_slope = prior_beta_ * moments_.seconds / prior_seconds;
  // Ridge regression towards it.
  const double spread = kPriorSpread * moments_.batch;
  const double trust = spread * spread * moments_.weight;
  const double slope =
      (moments_.covariance + trust * prior_slope) / (moments_.batch_variance + trust);
  const double steepest = moments_.seconds / moments_.batch;  // α = 0
  beta_ = std::clamp(slope, std::min(kLeastSlope * prior_slope, steepest), steepest);
  alpha_ = std::max(0.0, moments_.seconds - beta_ * moments_.batch);
}

void CostModel::Moments::add(double b, double s, double w) noexcept {
  weight += w;
  const double from_old_batch = b - batch;
  batch += from_old_batch * (w / weight);
  seconds += (s - seconds) * (w / weight);
  batch_variance += w * from_old_batch * (b - batch);
  covariance += w * from_old_batch * (s - seconds);
}

void CostModel::Moments::forget(double factor) noexcept {
  weight *= factor;
  batch_variance *= factor;
  covariance *= factor;
}

void CostModel::Drift::add(double evidence, double batch, double seconds) noexcept {
  sum += evidence;
  if (sum <= 0.0) {
    *this = Drift{};
    return;
  }
  since.add(batch, seconds, 1.0);
}

}  // namespace bimetal::balance

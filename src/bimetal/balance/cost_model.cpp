#include "bimetal/balance/cost_model.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "bimetal/base/error.h"

namespace bimetal::balance {
namespace {

// docs/balance.md, "Fitting", gives the reasons for these numbers.
constexpr double kMemory = 0.98;      // an observation's weight after one more step
constexpr double kPriorWeight = 4.0;  // observations that a probe is worth

constexpr double kShapeDoubt = 0.1;       // standard deviation of a probe's elasticity
constexpr double kShapeCertainty = 0.04;  // and the least one: later evidence always counts
constexpr double kLeastElasticity = 0.05;
constexpr double kLeastNoise = 0.03;  // of a time, where it is weighed as evidence of the shape

constexpr double kNoiseMemory = 0.95;   // as kMemory, for the usual noise
constexpr double kLeastBound = 0.1;     // outliers are damped to this distance, or to
constexpr double kNoisesToBound = 2.0;  // so many times the usual noise

constexpr double kTolerance = 0.08;       // a distance that is never evidence of another speed
constexpr double kLargestEvidence = 0.2;  // of one observation
constexpr double kProof = 0.55;           // so that two outliers never suffice but three do
constexpr double kSuspicion = 0.25;
constexpr double kDriftMemory = 0.5;  // as kMemory, for observations since a change began

constexpr double kHeldFor = 15.0;    // observations after which a speed is worth remembering
constexpr double kSameAgain = 0.25;  // a distance within which it is taken up again

/// Relative distance on a scale on which twice as fast and twice as slow are equally far.
double surprise(double seconds, double predicted) {
  return seconds >= predicted ? seconds / predicted - 1.0 : 1.0 - predicted / seconds;
}

/// The time that lies `surprise` away from the prediction.
double surprising_time(double surprise, double predicted) {
  return surprise >= 0.0 ? predicted * (1.0 + surprise) : predicted / (1.0 - surprise);
}

}  // namespace

CostModel::CostModel(double alpha, double beta) : alpha_(alpha), beta_(beta), known_(true) {
  if (!(std::isfinite(alpha) && std::isfinite(beta) && alpha >= 0.0 && beta >= 0.0 &&
        alpha + beta > 0.0)) {
    throw Error(ErrorCode::InvalidArgument,
                fmt::format("a device cannot take {} s per step and {} s per sample", alpha, beta));
  }
  state_.shape_alpha = alpha;
  state_.shape_beta = beta;
  state_.shape_evidence = 1.0 / (kShapeDoubt * kShapeDoubt);
}

double CostModel::rate(std::int64_t batch) const noexcept {
  if (!known_ || batch <= 0) return 0.0;
  const auto samples = static_cast<double>(batch);
  return samples / seconds(samples);
}

void CostModel::observe(std::int64_t batch, double seconds) {
  if (batch <= 0 || !std::isfinite(seconds) || seconds <= 0.0) return;
  const Observation observed{static_cast<double>(batch), seconds};
  if (!known_) {
    *this = CostModel(0.0, seconds / observed.batch);
    state_.means.add(observed, 1.0);
    last_ = observed;
    return;
  }
  const double predicted = this->seconds(observed.batch);
  if (state_.means.weight == 0.0) state_.means.add({observed.batch, predicted}, kPriorWeight);

  if (!contradicted()) calm_ = state_;
  const double distance = surprise(seconds, predicted);
  const double bound = std::max(kLeastBound, kNoisesToBound * state_.noise);
  learn_shape(observed, bound);
  const double damped = surprising_time(std::clamp(distance, -bound, bound), predicted);
  state_.means.weight *= kMemory;
  state_.means.add({observed.batch, damped}, 1.0);

  const double tolerance = std::max(kTolerance, state_.noise);
  slower_.add(std::min(distance - tolerance, kLargestEvidence), observed);
  faster_.add(std::min(-distance - tolerance, kLargestEvidence), observed);
  const double most = tolerance + kLargestEvidence;
  state_.noise += (1.0 - kNoiseMemory) * (std::min(std::abs(distance), most) - state_.noise);

  for (const Drift& drift : {slower_, faster_}) {
    if (drift.sum < kProof) continue;
    change_to(drift);
    slower_ = faster_ = Drift{};
  }
  last_ = observed;
  refit();
}

/// Goes on from the observations of a lasting change, or, if they agree with the state before an
/// earlier change, from that state: a disturbance in between has passed.
void CostModel::change_to(const Drift& drift) noexcept {
  const double expected = before_.seconds(drift.since.batch);
  const double off = surprise(drift.since.seconds, expected);
  if (before_.means.weight > 0.0 && std::abs(off) < kSameAgain) {
    state_ = before_;
  } else {
    state_.means = drift.since;
    state_.noise = std::min(state_.noise, drift.noise());
  }
  if (calm_.means.weight >= kHeldFor) before_ = calm_;
}

double CostModel::uncertainty() const noexcept {
  return state_.noise / std::sqrt(std::max(1.0, state_.means.weight));
}

bool CostModel::unsettled() const noexcept {
  return std::max(slower_.sum, faster_.sum) >= kSuspicion;
}

/// The elasticity: the growth of the time in per cent if the batch grows by 1 %: β·b ÷ (α + β·b),
/// which no change of the device's speed changes.
double CostModel::elasticity(double batch) const noexcept {
  const double samples = state_.shape_beta * batch;
  return samples / (state_.shape_alpha + samples);
}

/// One step of recursive least squares on the difference of two successive steps, in which the
/// speed, whatever it is, cancels out. Batches that are alike have nothing to tell.
void CostModel::learn_shape(Observation observed, double bound) noexcept {
  if (last_.batch == 0.0 || last_.batch == observed.batch) return;
  const double before = surprise(last_.seconds, seconds(last_.batch));
  const double now = surprise(observed.seconds, seconds(observed.batch));
  const double contradiction = std::clamp(now - before, -bound, bound);
  // How the logarithm of the two times' quotient grows with the elasticity at their middle.
  const double middle = (observed.batch + last_.batch) / 2;
  const double e = std::max(elasticity(middle), kLeastElasticity);
  const double constant = middle * (1.0 - e) / e;  // α ÷ β
  const double leverage =
      (1.0 / (constant + last_.batch) - 1.0 / (constant + observed.batch)) * middle / (e * e);
  const double noise = std::max(state_.noise, kLeastNoise);
  const double weight = 1.0 / (2.0 * noise * noise);
  const double most = 1.0 / (kShapeCertainty * kShapeCertainty);
  state_.shape_evidence = std::min(state_.shape_evidence + weight * leverage * leverage, most);
  const double learnt = std::clamp(e + weight * leverage * contradiction / state_.shape_evidence,
                                   kLeastElasticity, 1.0);
  state_.shape_alpha = 1.0 - learnt;
  state_.shape_beta = learnt / middle;
}

void CostModel::refit() noexcept {
  const double scale = state_.scale();
  alpha_ = scale * state_.shape_alpha;
  beta_ = scale * state_.shape_beta;
}

double CostModel::State::scale() const noexcept {
  return means.seconds / (shape_alpha + shape_beta * means.batch);
}

double CostModel::State::seconds(double batch) const noexcept {
  return scale() * (shape_alpha + shape_beta * batch);
}

void CostModel::Means::add(Observation observed, double w) noexcept {
  weight += w;
  batch += (observed.batch - batch) * (w / weight);
  seconds += (observed.seconds - seconds) * (w / weight);
}

void CostModel::Drift::add(double evidence, Observation observed) noexcept {
  sum += evidence;
  if (sum <= 0.0) {
    *this = Drift{};
    return;
  }
  since.weight *= kDriftMemory;
  squares *= kDriftMemory;
  const double from_old_mean = observed.seconds - since.seconds;
  since.add(observed, 1.0);
  squares += from_old_mean * (observed.seconds - since.seconds);
}

double CostModel::Drift::noise() const noexcept {
  return std::sqrt(squares / since.weight) / since.seconds;
}

}  // namespace bimetal::balance

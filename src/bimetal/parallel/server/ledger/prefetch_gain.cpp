#include "bimetal/parallel/server/ledger/prefetch_gain.h"

#include <algorithm>

namespace bimetal::parallel::server {
namespace {

// A shorter exchange, as a part of a lease's time, is not worth older gradients.
constexpr double kLeastExchange = 0.2;
constexpr double kLeastGain = 1.1;
constexpr int kAloneBefore = 2;
constexpr int kTrial = 8;
// Then the other way is looked at again, which costs less than a percent.
constexpr int kLeasesToReconsider = 400;
constexpr double kKept = 7.0 / 8;

}  // namespace

void PrefetchGain::Recent::add(double of_samples, double of_compute, double of_exchange) {
  ++leases;
  weight = kKept * weight + 1;
  samples = kKept * samples + of_samples;
  compute = kKept * compute + of_compute;
  exchange = kKept * exchange + of_exchange;
}

void PrefetchGain::observe(std::int64_t samples, double seconds, double compute_seconds,
                           bool ahead) {
  if (!warm_) {
    warm_ = true;
    return;
  }
  if (!ahead && ahead_since_alone_ >= kLeasesToReconsider) alone_ = {};
  const double exchange = std::max(seconds - compute_seconds, 0.0);
  (ahead ? ahead_ : alone_).add(static_cast<double>(samples), compute_seconds, exchange);
  ahead_since_alone_ = ahead ? ahead_since_alone_ + 1 : 0;
  alone_since_trial_ = ahead || gains() ? 0 : alone_since_trial_ + 1;
  if (alone_since_trial_ >= kLeasesToReconsider) ahead_ = {};
}

/// As far as is known: until it has been tried, it is hoped for. Leases of both kinds need not be
/// of one size: the first worker of a job has whole steps before the others come.
bool PrefetchGain::gains() const noexcept {
  if (ahead_.leases < kTrial) return true;
  const double samples = ahead_.mean_samples();
  return kLeastGain * ahead_.seconds(samples) <= alone_.seconds(samples);
}

bool PrefetchGain::worthwhile() const noexcept {
  if (alone_.leases < kAloneBefore) return false;
  if (alone_.exchange < kLeastExchange * (alone_.exchange + alone_.compute)) return false;
  return gains() && ahead_since_alone_ < kLeasesToReconsider;
}

}  // namespace bimetal::parallel::server

#include "bimetal/parallel/server/prefetch_gain.h"

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

void PrefetchGain::Recent::add(double of_samples, double of_seconds, double of_compute) {
  ++leases;
  samples = kKept * samples + of_samples;
  seconds = kKept * seconds + of_seconds;
  compute = kKept * compute + of_compute;
}

void PrefetchGain::observe(std::int64_t samples, double seconds, double compute_seconds,
                           bool ahead) {
  if (!warm_) {
    warm_ = true;
    return;
  }
  if (!ahead && ahead_since_alone_ >= kLeasesToReconsider) alone_ = {};
  (ahead ? ahead_ : alone_).add(static_cast<double>(samples), seconds, compute_seconds);
  ahead_since_alone_ = ahead ? ahead_since_alone_ + 1 : 0;
  alone_since_trial_ = ahead || gains() ? 0 : alone_since_trial_ + 1;
  if (alone_since_trial_ >= kLeasesToReconsider) ahead_ = {};
}

/// As far as is known: until it has been tried, it is hoped for.
bool PrefetchGain::gains() const noexcept {
  return ahead_.leases < kTrial || ahead_.rate() >= kLeastGain * alone_.rate();
}

bool PrefetchGain::worthwhile() const noexcept {
  if (alone_.leases < kAloneBefore) return false;
  if (alone_.seconds - alone_.compute < kLeastExchange * alone_.seconds) return false;
  return gains() && ahead_since_alone_ < kLeasesToReconsider;
}

}  // namespace bimetal::parallel::server

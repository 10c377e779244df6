#include "bimetal/parallel/server/ledger/worker_speed.h"

#include <algorithm>

namespace bimetal::parallel::server {
namespace {

constexpr int kStepsToReconsider = 200;

}  // namespace

void WorkerSpeed::observe(std::int64_t samples, double seconds, double compute_seconds,
                          bool ahead) {
  compute_.observe(samples, std::min(compute_seconds, seconds));
  (ahead ? ahead_ : alone_).add(std::max(seconds - compute_seconds, 0.0));
  newest_ahead_ = ahead;
  steps_idle_ = 0;
}

void WorkerSpeed::pass_over() {
  if (++steps_idle_ < kStepsToReconsider) return;
  steps_idle_ = 0;
  if (probed_.known()) compute_ = probed_;
}

/// A pause of the process or of the network says little about the next exchange.
double WorkerSpeed::Exchanges::median() const {
  auto sorted = newest;
  const auto known = std::min(count, sorted.size());
  if (known == 0) return 0;
  const auto middle = sorted.begin() + static_cast<std::ptrdiff_t>((known - 1) / 2);
  std::nth_element(sorted.begin(), middle, sorted.begin() + static_cast<std::ptrdiff_t>(known));
  return *middle;
}

double WorkerSpeed::exchange(bool ahead) const {
  const bool like_it = ahead ? ahead_.count > 0 : alone_.count == 0;
  return (like_it ? ahead_ : alone_).median();
}

double WorkerSpeed::seconds(std::int64_t samples, bool ahead) const noexcept {
  return known() ? exchange(ahead) + compute_.seconds(static_cast<double>(samples)) : 0;
}

double WorkerSpeed::rate(std::int64_t samples) const noexcept {
  const double time = seconds(samples);
  return time > 0 ? static_cast<double>(samples) / time : 0;
}

balance::CostModel WorkerSpeed::cost() const {
  return {compute_.alpha() + exchange(newest_ahead_), compute_.beta()};
}

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

namespace {

// Gradients older than that are not followed any further.
constexpr std::size_t kVersionsKept = 4096;

}  // namespace

void GradientAge::observe(int worker, std::uint64_t used) {
  const auto then = steps_.find(used);
  if (then == steps_.end()) return;
  Ages& ages = ages_[worker];
  ages.newest[ages.count++ % ages.newest.size()] = steps_.rbegin()->second - then->second;
}

void GradientAge::add_update(double part) {
  const double before = steps_.rbegin()->second;
  steps_[++version_] = before + part;
  if (steps_.size() > kVersionsKept) steps_.erase(steps_.begin());
}

/// The median: a pause of one worker says little about its next lease.
double GradientAge::expected(int worker) const {
  const auto found = ages_.find(worker);
  if (found == ages_.end()) return 0;
  auto sorted = found->second.newest;
  const auto end =
      sorted.begin() + static_cast<std::ptrdiff_t>(std::min(found->second.count, sorted.size()));
  const auto middle = sorted.begin() + (end - sorted.begin() - 1) / 2;
  std::nth_element(sorted.begin(), middle, end);
  return std::min(*middle, kFurthestAhead);
}

}  // namespace bimetal::parallel::server

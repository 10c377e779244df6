#include "bimetal/parallel/server/worker_speed.h"

#include <algorithm>

namespace bimetal::parallel::server {
namespace {

constexpr int kStepsToReconsider = 200;

}  // namespace

void WorkerSpeed::observe(std::int64_t samples, double seconds, double compute_seconds) {
  compute_.observe(samples, std::min(compute_seconds, seconds));
  newest_[exchanges_++ % newest_.size()] = std::max(seconds - compute_seconds, 0.0);
  steps_idle_ = 0;
}

void WorkerSpeed::pass_over() {
  if (++steps_idle_ < kStepsToReconsider) return;
  steps_idle_ = 0;
  if (probed_.known()) compute_ = probed_;
}

/// The median: a pause of the process or of the network says little about the next exchange.
double WorkerSpeed::exchange() const {
  auto sorted = newest_;
  const auto count = std::min(exchanges_, sorted.size());
  if (count == 0) return 0;
  const auto middle = sorted.begin() + static_cast<std::ptrdiff_t>((count - 1) / 2);
  std::nth_element(sorted.begin(), middle, sorted.begin() + static_cast<std::ptrdiff_t>(count));
  return *middle;
}

double WorkerSpeed::seconds(std::int64_t samples) const noexcept {
  return known() ? exchange() + compute_.seconds(static_cast<double>(samples)) : 0;
}

double WorkerSpeed::rate(std::int64_t samples) const noexcept {
  const double time = seconds(samples);
  return time > 0 ? static_cast<double>(samples) / time : 0;
}

balance::CostModel WorkerSpeed::cost() const {
  return {compute_.alpha() + exchange(), compute_.beta()};
}

}  // namespace bimetal::parallel::server

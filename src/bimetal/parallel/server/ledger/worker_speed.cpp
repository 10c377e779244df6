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

}  // namespace bimetal::parallel::server

#include "bimetal/parallel/server/worker_speed.h"

#include <algorithm>

namespace bimetal::parallel::server {
namespace {

constexpr double kNewestExchange = 0.2;  // weight of the newest of the exchanges
constexpr int kStepsToReconsider = 200;

}  // namespace

void WorkerSpeed::observe(std::int64_t samples, double seconds, double compute_seconds) {
  compute_.observe(samples, std::min(compute_seconds, seconds));
  const double exchange = std::max(seconds - compute_seconds, 0.0);
  // A pause of the process or of the network says little about the next exchange.
  const double damped = exchanged_ ? std::min(exchange, 2 * exchange_ + 0.001) : exchange;
  exchange_ = exchanged_ ? exchange_ + kNewestExchange * (damped - exchange_) : exchange;
  exchanged_ = true;
  steps_idle_ = 0;
}

void WorkerSpeed::pass_over() {
  if (++steps_idle_ < kStepsToReconsider) return;
  steps_idle_ = 0;
  if (probed_.known()) compute_ = probed_;
}

double WorkerSpeed::seconds(std::int64_t samples) const noexcept {
  return known() ? exchange_ + compute_.seconds(static_cast<double>(samples)) : 0;
}

double WorkerSpeed::rate(std::int64_t samples) const noexcept {
  const double time = seconds(samples);
  return time > 0 ? static_cast<double>(samples) / time : 0;
}

balance::CostModel WorkerSpeed::cost() const {
  return {compute_.alpha() + exchange_, compute_.beta()};
}

}  // namespace bimetal::parallel::server

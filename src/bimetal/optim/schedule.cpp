#include "bimetal/optim/schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace bimetal::optim {
namespace {

/// How far `done` is towards `total`, from 0 to 1.
double progress(std::int64_t done, std::int64_t total) {
  if (done >= total) return 1;
  return done <= 0 ? 0 : static_cast<double>(done) / static_cast<double>(total);
}

/// The part of the way from warmup_from to the full rate, `done` steps after it began.
double grown(const job::TrainConfig& config, std::int64_t done) {
  if (config.warmup == "linear") return progress(done, config.warmup_steps);
  if (config.warmup_steps < 2) return done > 0 ? 1 : 0;  // ln 1 is 0
  const auto steps = static_cast<double>(config.warmup_steps);
  return std::min(1.0, std::log1p(static_cast<double>(done)) / std::log(steps));
}

}  // namespace

double full_rate(const job::TrainConfig& config) {
  if (config.base_batch == 0) return config.learning_rate;
  return config.learning_rate * static_cast<double>(config.global_batch) /
         static_cast<double>(config.base_batch);
}

double learning_rate_at(const job::TrainConfig& config, std::int64_t step, std::int64_t job_steps) {
  const double full = full_rate(config);
  const std::int64_t warmup = config.warmup_steps;
  const std::int64_t done = std::max<std::int64_t>(0, step - config.warmup_lag);
  if (done < warmup) {
    return config.warmup_from + (full - config.warmup_from) * grown(config, done);
  }
  const std::int64_t decay = (config.decay_steps > 0 ? config.decay_steps : job_steps) - warmup;
  const double left = 1 - config.min_learning_rate_ratio;
  if (config.schedule == "linear") return full * (1 - left * progress(done - warmup, decay));
  if (config.schedule != "cosine") return full;
  const double angle = std::numbers::pi * progress(step - 1 - warmup, decay);
  return full * (config.min_learning_rate_ratio + left / 2 * (1 + std::cos(angle)));
}

}  // namespace bimetal::optim

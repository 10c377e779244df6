#include "bimetal/optim/schedule.h"

#include <cmath>
#include <numbers>

namespace bimetal::optim {
namespace {

/// The part of the full rate that is left after `done` of `total` steps.
double cosine_decay(std::int64_t done, std::int64_t total, double min_ratio) {
  if (done >= total) return min_ratio;
  const double progress = static_cast<double>(done) / static_cast<double>(total);
  return min_ratio + (1 - min_ratio) / 2 * (1 + std::cos(std::numbers::pi * progress));
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
  if (step <= warmup) {
    return config.warmup_from +
           (full - config.warmup_from) * (static_cast<double>(step) / static_cast<double>(warmup));
  }
  if (config.schedule != "cosine") return full;
  const std::int64_t end = config.decay_steps > 0 ? config.decay_steps : job_steps;
  return full * cosine_decay(step - 1 - warmup, end - warmup, config.min_learning_rate_ratio);
}

}  // namespace bimetal::optim

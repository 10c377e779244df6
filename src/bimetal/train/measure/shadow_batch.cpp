#include "bimetal/train/measure/shadow_batch.h"

#include <c10/core/StreamGuard.h>

#include <algorithm>
#include <chrono>
#include <exception>

#include "bimetal/checkpoint/starting_point.h"
#include "bimetal/device/device.h"
#include "bimetal/device/out_of_memory.h"
#include "bimetal/device/staging.h"

namespace bimetal::train {
namespace {

/// How many of the first samples weigh as much, or all of them.
std::int64_t samples_of_weight(const task::Dataset& data, std::int64_t weight) {
  std::int64_t samples = 0;
  while (weight > 0 && samples < data.size()) weight -= data.weight(samples++);
  return samples;
}

/// Not behind the job's own work, nor before it.
double step_aside(Rehearsal& rehearsal, std::int64_t samples, const torch::Device& device) {
  std::optional<c10::StreamGuard> aside;
  if (!device.is_cpu()) aside.emplace(device::stream_of_its_own(device));
  return rehearsal.step(samples);
}

}  // namespace

void ShadowBatch::begin(std::int64_t weight) try {
  if (under_way() || !fits_) return;
  if (!rehearsal_) {
    // Here and not on the other thread: the initial parameters are drawn from the generator that
    // the job's own random numbers come from.
    const auto before = checkpoint::random_state();
    rehearsal_.emplace(job_, task_, options_.device, options_.dtype, options_.precision,
                       options_.update);
    checkpoint::set_random_state(before);
    device::synchronize(options_.device);
  }
  const auto samples = samples_of_weight(*task_.training(), weight);
  weight_ = rehearsal_->weight(samples);
  running_ = std::async(std::launch::async, [this, samples] {
    return step_aside(*rehearsal_, samples, options_.device);
  });
} catch (...) {
  if (!device::is_out_of_memory(std::current_exception())) throw;
  fits_ = false;
  rehearsal_.reset();
}

progress::ShadowFigures ShadowBatch::take() try {
  if (!under_way() || running_.wait_for(std::chrono::seconds(0)) != std::future_status::ready) {
    return {};
  }
  return {.batch = weight_, .seconds = running_.get() / options_.speed};
} catch (...) {
  if (!device::is_out_of_memory(std::current_exception())) throw;
  fits_ = false;
  rehearsal_.reset();
  return {};
}

void ShadowBatch::rest() {
  if (rehearsal_ && !under_way()) rehearsal_.reset();
}

}  // namespace bimetal::train

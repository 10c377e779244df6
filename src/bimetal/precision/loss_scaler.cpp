#include "bimetal/precision/loss_scaler.h"

#include <torch/csrc/api/include/torch/types.h>
#include <torch/csrc/api/include/torch/utils.h>

#include <algorithm>
#include <cmath>

namespace bimetal::precision {

LossScalerOptions scaler_options(const job::TrainConfig& config) {
  if (config.loss_scale != 0) return {.initial = config.loss_scale, .dynamic = false};
  return {.initial = config.loss_scale_initial,
          .interval = config.loss_scale_window,
          .least = config.loss_scale_min,
          .hysteresis = config.loss_scale_hysteresis};
}

LossScaler::LossScaler(LossScalerOptions options)
    : options_(options), scale_(static_cast<float>(options.initial)) {}

void LossScaler::update(bool overflow) {
  if (overflow) {
    back_off();
  } else {
    stuck_ = 0;
    count_up();
  }
}

void LossScaler::back_off() {
  ++skipped_;
  growth_steps_ = 0;
  if (options_.dynamic && tolerated_ + 1 < options_.hysteresis) {
    ++tolerated_;
    return;
  }
  ++falls_;
  // The product of a float and a double is rounded once, as in torch's kernel.
  const auto lower = static_cast<float>(static_cast<double>(scale_) * options_.back_off);
  const auto floor = std::min(scale_, static_cast<float>(options_.least));
  const auto next = options_.dynamic ? std::max(lower, floor) : scale_;
  stuck_ = next == scale_ ? stuck_ + 1 : 0;
  scale_ = next;
}

void LossScaler::count_up() {
  if (!options_.dynamic || ++growth_steps_ < options_.interval) return;
  growth_steps_ = 0;
  falls_ = 0;
  tolerated_ = 0;
  const auto higher = static_cast<float>(static_cast<double>(scale_) * options_.growth);
  if (std::isfinite(higher)) scale_ = higher;
}

void LossScaler::restore(const LossScalerState& state) {
  skipped_ = state.skipped;
  if (!options_.dynamic) return;
  scale_ = static_cast<float>(state.scale);
  growth_steps_ = state.growth_steps;
  tolerated_ = state.tolerated;
}

DeviceLossScale::DeviceLossScale(const LossScaler& scaler, const torch::Device& device)
    : options_(scaler.options()),
      scale_(torch::full({}, scaler.scale(), torch::dtype(torch::kFloat32).device(device))),
      growth_steps_(torch::full({}, scaler.state().growth_steps,
                                torch::dtype(torch::kInt32).device(device))) {}

void DeviceLossScale::update(const torch::Tensor& found) {
  if (!options_.dynamic) return;
  const torch::NoGradGuard no_grad;
  const auto floor = scale_.clamp_max(options_.least);
  at::_amp_update_scale_(scale_, growth_steps_, found, options_.growth, options_.back_off,
                         options_.interval);
  at::maximum_out(scale_, scale_, floor);
}

}  // namespace bimetal::precision

#pragma once
// Keeps the gradients of float16 within its range: the loss is multiplied by a scale before
// backward, and the gradients are divided by it before the update.

#include <torch/csrc/api/include/torch/types.h>

#include <cstdint>

#include "bimetal/job/job_config.h"

namespace bimetal::precision {

struct LossScalerOptions {
  double initial = 65536;
  double growth = 2;      ///< the factor after `interval` steps in a row without an overflow
  double back_off = 0.5;  ///< the factor after a step with one
  std::int64_t interval = 2000;
  bool dynamic = true;  ///< false: the scale stays
  /// Below that the scale does not fall.
  double least = 1;
  /// The scale falls at that many overflows and at each one after them, until it grows again (the
  /// hysteresis of Megatron-LM's and DeepSpeed's scalers): one bad batch need not halve it.
  std::int64_t hysteresis = 1;
};

/// train.loss_scale: 0 is a dynamic scale as train.loss_scale_… say, anything else is kept.
LossScalerOptions scaler_options(const job::TrainConfig& config);

/// The loss scaler's state in checkpoints.
struct LossScalerState {
  double scale = 0;
  std::int64_t growth_steps = 0;  ///< in a row without an overflow
  std::int64_t skipped = 0;       ///< steps since the job's start
  std::int64_t tolerated = 0;     ///< overflows since the scale grew that did not lower it
  bool operator==(const LossScalerState&) const = default;
};

/// Decides on the scale as torch.amp.GradScaler does (Micikevicius et al., "Mixed Precision
/// Training", ICLR 2018, §3.2), on a CPU and without a device: in float32 arithmetic, step by step
/// the same, with two exceptions. A hysteresis may be above 1, which torch does not have. And there
/// is a floor, where torch's scale falls until it is 0 and stays so. All ranks that are told the
/// same hold the same. Use from one thread.
class LossScaler {
 public:
  explicit LossScaler(LossScalerOptions options);

  double scale() const noexcept { return static_cast<double>(scale_); }
  const LossScalerOptions& options() const noexcept { return options_; }  ///< as it was made

  /// After each step: whether any gradient of it, on any rank, was NaN or infinite. Such a step is
  /// not to change anything.
  void update(bool overflow);

  /// Overflows since the scale last grew, or since the start: it keeps falling.
  std::int64_t falls() const noexcept { return falls_; }
  /// Overflows in a row that could not lower the scale any more.
  std::int64_t stuck() const noexcept { return stuck_; }

  LossScalerState state() const { return {scale(), growth_steps_, skipped_, tolerated_}; }
  /// Goes on with it; a fixed scale stays as it is.
  void restore(const LossScalerState& state);

 private:
  void back_off();
  void count_up();

  LossScalerOptions options_;
  float scale_;
  std::int64_t growth_steps_ = 0, skipped_ = 0, tolerated_ = 0, falls_ = 0, stuck_ = 0;
};

/// The loss scale on the device of the gradients, so that the host need not wait for the device's
/// findings. Step by step it equals that of a LossScaler with the same findings and a hysteresis of
/// 1. Use from one thread.
class DeviceLossScale {
 public:
  /// Goes on from where `scaler` is.
  DeviceLossScale(const LossScaler& scaler, const torch::Device& device);

  /// A float32 number on the device, [].
  const torch::Tensor& scale() const noexcept { return scale_; }
  /// After each step; `found`: float32, [], 1 where any gradient was NaN or infinite, else 0.
  void update(const torch::Tensor& found);

 private:
  LossScalerOptions options_;
  torch::Tensor scale_, growth_steps_;
};

}  // namespace bimetal::precision

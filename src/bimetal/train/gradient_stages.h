#pragma once
// What becomes of a step's gradients between their sum over the ranks and the update: they are
// inspected, all ranks agree on what was found, and then they are clipped or the step is skipped.

#include <torch/csrc/api/include/torch/types.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "bimetal/optim/clip.h"
#include "bimetal/optim/fused.h"
#include "bimetal/precision/loss_scaler.h"
#include "bimetal/progress/worker_summary.h"

namespace bimetal::train {

/// The same on every rank.
struct UpdateOptions {
  optim::GradientLimits limits = {};
  /// Where any rank computes in float16.
  std::optional<precision::LossScalerOptions> scaler = {};
};

/// Of what the norms that inspect() returns are.
enum class Norms {
  OfWhole,   ///< each rank has all gradients
  OfShards,  ///< each has a part of them, all ranks together every element once
};

/// Who multiplies the gradients.
enum class Factors {
  Applied,   ///< inspect() and decide(), at once
  Deferred,  ///< the update, by factor(): a pass over them less for each
};

/// A step is backward of loss_scale() times the loss, the sum of gradients over the ranks,
/// inspect() on each rank, an exchange of what that returned, decide(). Or, of a rank alone, whose
/// host is not to wait: backward of scale_there() times the loss, decide_there(), the update, and
/// later learn() of it. Use from one thread.
class GradientStages {
 public:
  explicit GradientStages(const UpdateOptions& options, Norms norms = Norms::OfWhole);

  /// Of the steps from now on; each rank by itself.
  void set_factors(Factors factors) { factors_ = factors; }
  /// What the gradients are still to be multiplied by after decide(); 1 where that is applied.
  double factor() const { return factor_; }

  /// What the step's losses are to be multiplied by; 1 without a scaler.
  double loss_scale() const { return scaler_ ? scaler_->scale() : 1.0; }

  /// Whether what inspect() returns must be known to all ranks before decide().
  bool needs_agreement() const { return scaler_ || limits_.norm > 0; }

  /// Takes the scale out of the gradients and keeps the limit of their values. Returns their norm
  /// then, if it is limited, and otherwise 0; what is not finite if they are not. A norm differs in
  /// its last bits from device to device. With deferred factors the gradients keep the scale unless
  /// their values are limited.
  /// `counted`: those of them whose norm is meant, sharing their memory.
  double inspect(const std::vector<torch::Tensor>& gradients,
                 const std::vector<torch::Tensor>& counted);
  /// The same as a tensor of one number, which nobody waits for; undefined where it is 0 by itself.
  torch::Tensor look(const std::vector<torch::Tensor>& gradients,
                     const std::vector<torch::Tensor>& counted);
  double inspect(const std::vector<torch::Tensor>& gradients) {
    return inspect(gradients, gradients);
  }

  /// What all ranks do: they shorten the gradients to the limit and update (true), or skip the step
  /// (false). `ranks`: what inspect() returned, by rank; rank 0's norm counts, or that of all parts
  /// together. Error(NotFinite),
  /// the same on every rank, for gradients that are not finite where no scale is at fault, or where
  /// it cannot get smaller.
  bool decide(std::int64_t step, std::span<const progress::RankFigures> ranks,
              const std::vector<torch::Tensor>& gradients);

  /// What the losses of a step are to be multiplied by, as the device has it: [], undefined without
  /// a scaler.
  torch::Tensor scale_there(const torch::Device& device);
  struct There {
    torch::Tensor norm;     ///< as look() has it
    torch::Tensor skipped;  ///< of the scaler's: [], 1 where the step is no update; else undefined
  };
  /// Does where the gradients are what look() and decide() do.
  There decide_there(const std::vector<torch::Tensor>& gradients,
                     const std::vector<torch::Tensor>& counted);
  /// What decide() does but for the gradients. `made`: the update has been, so that it is dropped
  /// where the error says so. A step whose scale was scale_there() then goes on from there.
  bool learn(std::int64_t step, std::span<const progress::RankFigures> ranks, bool made = true);

  /// For checkpoints; empty without a scaler.
  std::optional<precision::LossScaler>& scaler() noexcept { return scaler_; }

  /// What is to be said after a step that was skipped: nothing where that is how a scale is found.
  std::optional<std::string> notice() const;

 private:
  torch::Tensor look_with(const std::vector<torch::Tensor>& gradients,
                          const std::vector<torch::Tensor>& counted, const torch::Tensor& inverse);
  torch::Tensor inverse_scale(const torch::Device& device) const;
  void require_way_out(std::int64_t step) const;

  optim::GradientLimits limits_;
  Norms norms_;
  Factors factors_ = Factors::Applied;
  double factor_ = 1;
  std::optional<precision::LossScaler> scaler_;
  std::optional<precision::DeviceLossScale> there_;  ///< ahead of it by what is not learnt yet
};

}  // namespace bimetal::train

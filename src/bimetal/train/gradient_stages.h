#pragma once
// The treatment of a step's gradients between their sum over the ranks and the update: they are
// inspected, all ranks agree on the findings, and then they are clipped or the step is skipped.

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
  /// Set if any rank computes in float16.
  std::optional<precision::LossScalerOptions> scaler = {};
};

/// The gradients that the norms of inspect() are taken of.
enum class Norms {
  OfWhole,   ///< each rank has all gradients
  OfShards,  ///< each has a part of them, all ranks together every element once
};

/// The place where gradients are multiplied.
enum class Factors {
  Applied,   ///< inspect() and decide(), at once
  Deferred,  ///< the update, by factor(): a pass over them less for each
};

/// A step is backward of loss_scale() times the loss, the sum of gradients over the ranks,
/// inspect() on each rank, an exchange of its results, decide(). Or, for a rank alone whose host
/// must not wait: backward of scale_there() times the loss, decide_there(), the update, and later
/// learn(). Use from one thread.
class GradientStages {
 public:
  explicit GradientStages(const UpdateOptions& options, Norms norms = Norms::OfWhole);

  /// Holds for the steps from now on; each rank by itself.
  void set_factors(Factors factors) { factors_ = factors; }
  /// The factor by which the gradients are still to be multiplied after decide(); 1 if it has been
  /// applied.
  double factor() const { return factor_; }

  /// The factor of the step's losses; 1 without a scaler.
  double loss_scale() const { return scaler_ ? scaler_->scale() : 1.0; }

  /// Whether what inspect() returns must be known to all ranks before decide().
  bool needs_agreement() const { return scaler_ || limits_.norm > 0; }

  /// Takes the scale out of the gradients and keeps the limit of their values. Returns their norm
  /// then, if it is limited, and otherwise 0. The result is not finite if they are not. A norm
  /// differs in its last bits from device to device. With deferred factors the gradients keep the
  /// scale unless their values are limited. `counted`: those of them that the norm is taken of,
  /// sharing their memory.
  double inspect(const std::vector<torch::Tensor>& gradients,
                 const std::vector<torch::Tensor>& counted);
  /// The same as a tensor of one number, which nobody waits for; undefined where it is 0 by itself.
  torch::Tensor look(const std::vector<torch::Tensor>& gradients,
                     const std::vector<torch::Tensor>& counted);
  double inspect(const std::vector<torch::Tensor>& gradients) {
    return inspect(gradients, gradients);
  }

  /// The decision of all ranks: they clip the gradients to the limit and update (true), or skip the
  /// step (false). `ranks`: what inspect() returned, by rank; rank 0's norm counts, or that of all
  /// parts together. Error(NotFinite), the same on every rank, for gradients that are not finite
  /// where no scale is at fault, or where it cannot get smaller.
  bool decide(std::int64_t step, std::span<const progress::RankFigures> ranks,
              const std::vector<torch::Tensor>& gradients);

  /// The factor of a step's losses as a tensor on the device: [], undefined without a scaler.
  torch::Tensor scale_there(const torch::Device& device);
  struct There {
    torch::Tensor norm;     ///< as look() has it
    torch::Tensor skipped;  ///< of the scaler's: [], 1 where the step is no update; else undefined
  };
  /// Does where the gradients are what look() and decide() do.
  There decide_there(const std::vector<torch::Tensor>& gradients,
                     const std::vector<torch::Tensor>& counted);
  /// The part of decide() that does not touch the gradients. `made`: the update has been made, so
  /// the error says whether it is dropped. A step whose scale was scale_there() then goes on from
  /// there.
  bool learn(std::int64_t step, std::span<const progress::RankFigures> ranks, bool made = true);

  /// For checkpoints; empty without a scaler.
  std::optional<precision::LossScaler>& scaler() noexcept { return scaler_; }

  /// The notice after a step that was skipped; nothing if that is how a scale is found.
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
  std::optional<precision::DeviceLossScale> there_;  ///< ahead of it by the steps not learnt
                                                     ///< yet
};

}  // namespace bimetal::train

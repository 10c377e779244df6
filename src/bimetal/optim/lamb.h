#pragma once
// LAMB: Adam with decoupled weight decay whose step is scaled for each tensor to the length of the
// tensor itself, for batches so large that one rate for all layers is too much for some of them.

#include <torch/csrc/api/include/torch/optim/adam.h>

#include <tuple>

#include "bimetal/optim/layer_wise.h"

namespace bimetal::optim {

struct LambOptions : torch::optim::OptimizerCloneableOptions<LambOptions> {
  using Betas = std::tuple<double, double>;
  explicit LambOptions(double learning_rate) : lr_(learning_rate) {}
  TORCH_ARG(double, lr);                             ///< η
  TORCH_ARG(Betas, betas) = std::tuple(0.9, 0.999);  ///< β₁, β₂
  TORCH_ARG(double, eps) = 1e-6;                     ///< ε
  TORCH_ARG(double, weight_decay) = 0;               ///< λ

 public:
  double get_lr() const override { return lr(); }
  void set_lr(double rate) override { lr(rate); }
  void require_valid() const;  ///< Error(InvalidArgument), see below
};

/// LAMB (You et al., "Large Batch Optimization for Deep Learning: Training BERT in 76 minutes",
/// ICLR 2020, Algorithm 2). For each parameter tensor x with gradient g in its t-th step, m and v
/// being 0 at first, element by element but for the norms:
///
///     m ← β₁ m + (1 − β₁) g          m̂ = m / (1 − β₁ᵗ)
///     v ← β₂ v + (1 − β₂) g²         v̂ = v / (1 − β₂ᵗ)
///     u = m̂ / (√v̂ + ε) + λ x
///     x ← x − η ‖x‖ / ‖u‖ · u
///
/// The paper's φ is the identity here. The norms are Euclidean ones over all elements of the
/// tensor, so it must be whole: a part of one has other norms. Where ‖x‖ or ‖u‖ is 0, the ratio is
/// taken as 1. Tensors of one dimension or none (biases, normalizations) take part with a ratio of
/// one and λ = 0: plain Adam at rate η.
///
/// The state is Adam's (step, exp_avg, exp_avg_sq), in the parameter's type. Gradients are dense.
///
/// Groups given to the constructor keep options of their own; add_param_group() gives a group the
/// defaults, as libtorch does with options of a type that it does not know.
///
/// Use from one thread. Error(InvalidArgument) for a negative rate, ε or decay and for betas
/// outside [0, 1).
class Lamb : public LayerWise<LambOptions, torch::optim::AdamParamState> {
 public:
  using LayerWise::LayerWise;

 private:
  torch::Tensor adam_step(const torch::Tensor& parameter, const LambOptions& options);
  void update(torch::Tensor& parameter, const LambOptions& options) override;
};

}  // namespace bimetal::optim

#pragma once
// LARS: momentum SGD whose rate is scaled for each tensor by the ratio of two norms, for batches so
// large that one rate for all layers is too much for some of them.

#include <torch/csrc/api/include/torch/optim/sgd.h>

#include "bimetal/optim/layer_wise.h"
#include "bimetal/optim/part_of_step.h"

namespace bimetal::optim {

struct LarsOptions : torch::optim::OptimizerCloneableOptions<LarsOptions> {
  explicit LarsOptions(double learning_rate) : lr_(learning_rate) {}
  TORCH_ARG(double, lr);                         ///< γ
  TORCH_ARG(double, momentum) = 0.9;             ///< m
  TORCH_ARG(double, weight_decay) = 0;           ///< β
  TORCH_ARG(double, trust_coefficient) = 0.001;  ///< η

 public:
  double get_lr() const override { return lr(); }
  void set_lr(double rate) override { lr(rate); }
  void require_valid() const;  ///< Error(InvalidArgument), see below
};

/// Layer-wise Adaptive Rate Scaling (You, Gitman, Ginsburg, "Large Batch Training of Convolutional
/// Networks", 2017, Algorithm 1). For each parameter tensor w with gradient g, v being 0 at first:
///
///     λ = η ‖w‖ / (‖g‖ + β ‖w‖)
///     v ← m v + γ λ (g + β w)
///     w ← w − v
///
/// The norms are Euclidean ones over all elements of the tensor, so it must be whole: a part of one
/// has other norms. Where ‖w‖ or ‖g‖ is 0, λ is 1. Tensors of one dimension or none (biases,
/// normalizations) take part with λ = 1 and β = 0: plain momentum SGD at rate γ.
///
/// A part p of a step (optim/part_of_step.h) has m^p in place of m, (1 − m^p) / (1 − m)
/// before γ, and takes p v from w.
///
/// v is the state's momentum_buffer, in the parameter's type; with m = 0 there is none. It holds
/// the rate of each step that went into it, unlike torch::optim::SGD's. Gradients are dense.
///
/// Groups given to the constructor keep options of their own; add_param_group() gives a group the
/// defaults, as libtorch does with options of a type that it does not know.
///
/// Use from one thread. Error(InvalidArgument) for a negative rate, decay or coefficient and for a
/// momentum outside [0, 1).
class Lars : public LayerWise<LarsOptions, torch::optim::SGDParamState>, public Velocity {
 public:
  using LayerWise::LayerWise;
  void set_part(double part) override { part_ = part; }
  torch::Tensor velocity_of(const torch::Tensor& parameter) const override;

 private:
  void update(torch::Tensor& parameter, const LarsOptions& options) override;

  double part_ = 1;
};

}  // namespace bimetal::optim

#pragma once
// The walk over parameters, and groups with options of their own, for any optimizer of ours that
// goes through whole tensors.

#include <torch/csrc/api/include/torch/optim/adam.h>
#include <torch/csrc/api/include/torch/optim/optimizer.h>
#include <torch/csrc/api/include/torch/optim/sgd.h>
#include <torch/csrc/api/include/torch/types.h>
#include <torch/csrc/api/include/torch/utils.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <tuple>
#include <utility>
#include <vector>

#include "bimetal/base/error.h"
#include "bimetal/optim/part_of_step.h"

namespace bimetal::optim {

// The common part of LARS and LAMB: which parameters they adapt, and the norms of whole tensors.
// Private to this folder. Pure functions, safe from any thread.

/// Whether the rate of `parameter` is adapted and its weights decay: from two dimensions on
/// (matrices, kernels). Parameters with one dimension or none (biases, scales and shifts of
/// normalizations) are exempt from both, as is usual.
bool is_adapted(const torch::Tensor& parameter);

/// ‖tensor‖₂ over all elements, for at least two dimensions: a scalar on the tensor's device, in
/// the type itself or, for 16-bit types, float32. On the CPU its bits don't depend on the number of
/// threads, so that ranks with unlike numbers of them keep equal parameters.
torch::Tensor norm_of(const torch::Tensor& tensor);

/// norm_of() each of several tensors of one device and type, as one vector; for a single tensor a
/// scalar.
torch::Tensor norms_of(const std::vector<torch::Tensor>& tensors);

/// `ratio` where both norms are above 0; 1 where one is 0, which says nothing about a good length.
torch::Tensor trust_ratio(const torch::Tensor& ratio, const torch::Tensor& weight_norm,
                          const torch::Tensor& step_norm);

/// How many of the first tensors of a group are updated at once, in its order. One on the CPU,
/// where each is in the cache from operation to operation. On accelerators as many as are worth a
/// launch, and no more than `elements` of them unless one has more: the step of each is in memory
/// beside it.
std::size_t at_once(std::span<const torch::Tensor> parameters, std::int64_t elements);

/// An optimizer that treats each parameter tensor as a whole. `Options` has require_valid(), which
/// throws Error(InvalidArgument). Use from one thread.
template <typename Options, typename State>
class LayerWise : public torch::optim::Optimizer {
 public:
  LayerWise(const std::vector<torch::optim::OptimizerParamGroup>& groups, const Options& defaults)
      : Optimizer(groups, std::make_unique<Options>(defaults)) {
    defaults.require_valid();
    for (std::size_t i = 0; i < groups.size(); ++i) {
      if (!groups[i].has_options()) continue;
      // libtorch replaces a group's options by the defaults unless it knows their type.
      param_groups()[i].set_options(groups[i].options().clone());
      options_of(param_groups()[i]).require_valid();
    }
  }
  LayerWise(std::vector<torch::Tensor> parameters, const Options& defaults)
      : LayerWise({torch::optim::OptimizerParamGroup(std::move(parameters))}, defaults) {}

  /// Updates every parameter that has a gradient. `closure` computes the gradients first; its
  /// result is returned.
  torch::Tensor step(LossClosure closure = nullptr) final {
    torch::Tensor loss;
    if (closure) {
      const torch::AutoGradMode with_gradients(true);
      loss = closure();
    }
    const torch::NoGradGuard no_grad;
    for (auto& group : param_groups()) {
      for (const bool adapted : {true, false}) {
        step_those(options_of(group), parameters_of(group, adapted), adapted);
      }
    }
    return loss;
  }

  /// Elements of tensors that are updated together; 0: one tensor at a time, on a CPU unless set.
  void set_together(std::int64_t elements) { together_ = elements; }

  /// libtorch's archives may hold code, which loading one executes: Error(Unsupported).
  void save(torch::serialize::OutputArchive&) const final { refuse_archive(); }
  void load(torch::serialize::InputArchive&) final { refuse_archive(); }

 protected:
  /// Updates several tensors on one device, by operations on all of them. Each has a gradient, and
  /// either all are adapted or none is.
  virtual void update(const std::vector<torch::Tensor>& parameters, const Options& options,
                      bool adapted) = 0;

  /// A new one at first.
  State& state_of(const torch::Tensor& parameter) {
    auto& slot = state()[parameter.unsafeGetTensorImpl()];
    if (!slot) slot = std::make_unique<State>();
    return static_cast<State&>(*slot);
  }

 private:
  using Parameters = std::vector<torch::Tensor>;

  static Parameters parameters_of(const torch::optim::OptimizerParamGroup& group, bool adapted) {
    Parameters found;
    for (const auto& parameter : group.params()) {
      if (parameter.grad().defined() && is_adapted(parameter) == adapted)
        found.push_back(parameter);
    }
    return found;
  }

  void step_those(const Options& options, const Parameters& parameters, bool adapted) {
    const std::span<const torch::Tensor> all(parameters);
    for (std::size_t begin = 0; begin < all.size();) {
      const auto end = begin + at_once(all.subspan(begin), together_);
      update({parameters.begin() + static_cast<std::ptrdiff_t>(begin),
              parameters.begin() + static_cast<std::ptrdiff_t>(end)},
             options, adapted);
      begin = end;
    }
  }

  std::int64_t together_ = -1;  ///< as the device has it

  [[noreturn]] static void refuse_archive() {
    throw Error(
        ErrorCode::Unsupported,
        "this optimizer's state does not go into libtorch's archives; save and load it with "
        "train::save_checkpoint and train::load_checkpoint");
  }
  static const Options& options_of(const torch::optim::OptimizerParamGroup& group) {
    return static_cast<const Options&>(group.options());
  }
};

// LAMB: Adam with decoupled weight decay whose step is scaled for each tensor to the length of the
// tensor itself, for batches so large that one rate for all layers is too much for some of them.

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
  std::vector<torch::Tensor> adam_steps(const std::vector<torch::Tensor>& parameters,
                                        const LambOptions& options);
  void update(const std::vector<torch::Tensor>& parameters, const LambOptions& options,
              bool adapted) override;
};

// LARS: momentum SGD whose rate is scaled for each tensor by the ratio of two norms, for batches so
// large that one rate for all layers is too much for some of them.

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
  void update(const std::vector<torch::Tensor>& parameters, const LarsOptions& options,
              bool adapted) override;

  double part_ = 1;
};

}  // namespace bimetal::optim

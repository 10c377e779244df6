#pragma once
// libtorch's Adam, AdamW and SGD with the update of all parameters in one pass over memory, in the
// place of one kernel for each operation. What they compute, their options and their state are
// libtorch's own, so that checkpoints do not tell one from the other.

#include <torch/csrc/api/include/torch/optim/adam.h>
#include <torch/csrc/api/include/torch/optim/adamw.h>
#include <torch/csrc/api/include/torch/optim/optimizer.h>
#include <torch/csrc/api/include/torch/optim/sgd.h>
#include <torch/csrc/api/include/torch/types.h>

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace bimetal::optim {

/// Each takes its class's own way where libtorch's fused kernel would not do the same: on devices
/// other than CPUs, CUDA's and Metal's, with amsgrad, and for tensors that are not contiguous,
/// whose gradient's elements may lie in another order than their own. Use from one thread.

class FusedAdam final : public torch::optim::Adam {
 public:
  using Adam::Adam;
  torch::Tensor step(LossClosure closure = nullptr) override;  ///< one update
};

/// AdamW, as FusedAdam.
class FusedAdamW final : public torch::optim::AdamW {
 public:
  using AdamW::AdamW;
  torch::Tensor step(LossClosure closure = nullptr) override;  ///< one update
};

/// SGD, as FusedAdam.
class FusedSgd final : public torch::optim::SGD {
 public:
  using SGD::SGD;
  torch::Tensor step(LossClosure closure = nullptr) override;  ///< one update
};

// An optimizer that is somebody else's: what it keeps is tensors by names of its own, which
// checkpoints carry as they are.

/// Its learning rate is its own affair.
struct ForeignOptions : torch::optim::OptimizerCloneableOptions<ForeignOptions> {
  double get_lr() const override { return 0; }  ///< not known
  void set_lr(double /*rate*/) override {}      ///< does nothing
};

/// What it keeps of a parameter.
struct ForeignState : torch::optim::OptimizerCloneableParamState<ForeignState> {
  std::map<std::string, torch::Tensor> tensors;  ///< names without dots
};

/// Use from one thread.
class ForeignOptimizer : public torch::optim::Optimizer {
 public:
  /// `kind`: what it is called in checkpoints, whose state no other takes.
  ForeignOptimizer(std::vector<torch::Tensor> parameters, std::string kind)
      : Optimizer({torch::optim::OptimizerParamGroup(std::move(parameters))},
                  std::make_unique<ForeignOptions>()),
        kind_(std::move(kind)) {}

  const std::string& kind() const noexcept { return kind_; }  ///< as the constructor got it

 private:
  std::string kind_;
};

// What optimizers can whose update multiplies the gradients itself, and writes what parameters have
// become in bfloat16, too, so that unscaling, clipping and the copy take no passes over memory of
// their own, and goes from parameter to parameter.

/// An optimizer that does so. Use from one thread.
class MergedUpdate {
 public:
  virtual ~MergedUpdate() = default;
  /// Steps from now on take gradients times `factor`, and leave them as they are.
  virtual void set_gradient_factor(double factor) = 0;
  /// What steps call whenever they are through with a parameter.
  virtual void set_after_parameter(std::function<void(const torch::Tensor& parameter)> then) = 0;
  /// Where steps write a parameter that they change in bfloat16, too: contiguous memory of the host
  /// for as many elements; undefined: nowhere.
  virtual void set_bfloat16(std::function<torch::Tensor(const torch::Tensor& parameter)> of) = 0;
};

}  // namespace bimetal::optim

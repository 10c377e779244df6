#pragma once
// libtorch's Adam, AdamW and SGD with the update of all parameters in one pass over memory, in the
// place of one kernel for each operation. Their results, options and state are libtorch's own, so
// that checkpoints are the same.

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

/// An optimizer whose update a device leaves out by its own findings, so that the host need not
/// know when it asks for the update. Use from one thread.
class SkippableUpdate {
 public:
  virtual ~SkippableUpdate() = default;
  /// Whether the next step() can be left out, as parameters and gradients are now.
  virtual bool can_skip() const = 0;
  /// The next step(), and no other, changes nothing if `found` is 1: float32, one element, where
  /// the parameters are. It counts as a step until forget_step().
  virtual void skip_where(torch::Tensor found) = 0;
  /// The host has learnt that such a step was left out. Before a step without skip_where() it must
  /// have learnt of all.
  virtual void forget_step() = 0;
};

/// An optimizer's knowledge of steps that a device may have skipped.
struct SkippedSteps {
  torch::Tensor next;   ///< of the step to come, where defined
  torch::Tensor ahead;  ///< by how many steps the host's counts are ahead of the device's
};

/// Each takes its class's own way if libtorch's fused kernel would not do the same: on devices
/// without one, with amsgrad, and for tensors that are not contiguous, whose gradient may have
/// another order of elements. Such a step cannot be skipped. Use from one thread.

class FusedAdam final : public torch::optim::Adam, public SkippableUpdate {
 public:
  using Adam::Adam;
  torch::Tensor step(LossClosure closure = nullptr) override;  ///< one update
  bool can_skip() const override;
  void skip_where(torch::Tensor found) override { skipped_.next = std::move(found); }
  void forget_step() override;

 private:
  SkippedSteps skipped_;
};

/// AdamW, as FusedAdam.
class FusedAdamW final : public torch::optim::AdamW, public SkippableUpdate {
 public:
  using AdamW::AdamW;
  torch::Tensor step(LossClosure closure = nullptr) override;  ///< one update
  bool can_skip() const override;
  void skip_where(torch::Tensor found) override { skipped_.next = std::move(found); }
  void forget_step() override;

 private:
  SkippedSteps skipped_;
};

/// SGD, as FusedAdam; with dampening a first step cannot be skipped.
class FusedSgd final : public torch::optim::SGD, public SkippableUpdate {
 public:
  using SGD::SGD;
  torch::Tensor step(LossClosure closure = nullptr) override;  ///< one update
  bool can_skip() const override;
  void skip_where(torch::Tensor found) override { found_ = std::move(found); }
  void forget_step() override {}  ///< it counts none

 private:
  torch::Tensor found_;  ///< of the step to come, where defined
};

// An optimizer that is somebody else's: its state is tensors by names of its own, which checkpoints
// carry as they are.

/// Its learning rate is its own affair.
struct ForeignOptions : torch::optim::OptimizerCloneableOptions<ForeignOptions> {
  double get_lr() const override { return 0; }  ///< not known
  void set_lr(double /*rate*/) override {}      ///< does nothing
};

/// The state kept for a parameter.
struct ForeignState : torch::optim::OptimizerCloneableParamState<ForeignState> {
  std::map<std::string, torch::Tensor> tensors;  ///< names without dots
};

/// Use from one thread.
class ForeignOptimizer : public torch::optim::Optimizer {
 public:
  /// `kind`: its name in checkpoints. No other kind takes their state.
  ForeignOptimizer(std::vector<torch::Tensor> parameters, std::string kind)
      : Optimizer({torch::optim::OptimizerParamGroup(std::move(parameters))},
                  std::make_unique<ForeignOptions>()),
        kind_(std::move(kind)) {}

  const std::string& kind() const noexcept { return kind_; }  ///< as the constructor got it

 private:
  std::string kind_;
};

// For optimizers whose update goes from parameter to parameter and multiplies the gradients itself.
// It also writes the new parameters in bfloat16. So unscaling, clipping and the copy take no passes
// over memory of their own.

/// An optimizer that does so. Use from one thread.
class MergedUpdate {
 public:
  virtual ~MergedUpdate() = default;
  /// Steps from now on take gradients times `factor`, and leave them as they are.
  virtual void set_gradient_factor(double factor) = 0;
  /// Called by steps whenever they have finished a parameter.
  virtual void set_after_parameter(std::function<void(const torch::Tensor& parameter)> then) = 0;
  /// The memory into which steps also write a parameter that they change, in bfloat16: contiguous,
  /// on the host, for as many elements. Undefined: none.
  virtual void set_bfloat16(std::function<torch::Tensor(const torch::Tensor& parameter)> of) = 0;
};

}  // namespace bimetal::optim

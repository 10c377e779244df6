#pragma once
// What any optimizer of our own must do that goes through whole tensors: the walk over parameters,
// and groups with options of their own.

#include <torch/csrc/api/include/torch/optim/optimizer.h>
#include <torch/csrc/api/include/torch/utils.h>

#include <cstddef>
#include <memory>
#include <utility>
#include <vector>

#include "bimetal/base/error.h"

namespace bimetal::optim {

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

  /// Updates every parameter that has a gradient. `closure` computes the gradients first; what it
  /// returns is returned.
  torch::Tensor step(LossClosure closure = nullptr) final {
    torch::Tensor loss;
    if (closure) {
      const torch::AutoGradMode with_gradients(true);
      loss = closure();
    }
    const torch::NoGradGuard no_grad;
    for (auto& group : param_groups()) {
      for (auto& parameter : group.params()) {
        if (parameter.grad().defined()) update(parameter, options_of(group));
      }
    }
    return loss;
  }

  /// libtorch's archives may hold code, which loading one executes: Error(Unsupported).
  void save(torch::serialize::OutputArchive&) const final { refuse_archive(); }
  void load(torch::serialize::InputArchive&) final { refuse_archive(); }

 protected:
  virtual void update(torch::Tensor& parameter, const Options& options) = 0;

  /// A new one at first.
  State& state_of(const torch::Tensor& parameter) {
    auto& slot = state()[parameter.unsafeGetTensorImpl()];
    if (!slot) slot = std::make_unique<State>();
    return static_cast<State&>(*slot);
  }

 private:
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

}  // namespace bimetal::optim

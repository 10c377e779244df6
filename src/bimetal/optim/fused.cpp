#include "bimetal/optim/fused.h"

#include <torch/csrc/api/include/torch/optim.h>
#include <torch/csrc/api/include/torch/types.h>
#include <torch/csrc/api/include/torch/utils.h>

#include <algorithm>
#include <map>
#include <memory>
#include <tuple>
#include <vector>

namespace bimetal::optim {
namespace {

using Group = torch::optim::OptimizerParamGroup;
using Tensors = std::vector<torch::Tensor>;

bool fits_kernel(const torch::Tensor& tensor) {
  return tensor.is_contiguous() && tensor.is_floating_point() &&
         tensor.layout() == torch::kStrided &&
         (tensor.is_cpu() || tensor.is_cuda() || tensor.is_mps());
}

/// Whether all parameters of the group that have a gradient can go through one call.
bool fits_kernel(const Group& group) {
  const torch::Tensor* first = nullptr;
  return std::ranges::all_of(group.params(), [&](const torch::Tensor& parameter) {
    if (!parameter.grad().defined()) return true;
    if (!first) first = &parameter;
    return fits_kernel(parameter) && fits_kernel(parameter.grad()) &&
           parameter.scalar_type() == first->scalar_type() &&
           parameter.grad().scalar_type() == first->scalar_type() &&
           parameter.device() == first->device();
  });
}

template <typename Options>
const Options& options_of(const Group& group) {
  return static_cast<const Options&>(group.options());
}

template <typename State>
State& state_of(torch::optim::Optimizer& optimizer, const torch::Tensor& parameter) {
  auto& slot = optimizer.state()[parameter.unsafeGetTensorImpl()];
  if (!slot) slot = std::make_unique<State>();
  return static_cast<State&>(*slot);
}

/// The kernels want each parameter's number of steps as a tensor; equal ones share it.
class StepTensors {
 public:
  torch::Tensor of(std::int64_t step, const torch::Device& device) {
    auto& tensor = tensors_[step];
    if (!tensor.defined()) {
      tensor =
          torch::full({}, static_cast<double>(step), torch::dtype(torch::kFloat32).device(device));
    }
    return tensor;
  }

 private:
  std::map<std::int64_t, torch::Tensor> tensors_;
};

using AdamKernel = void (*)(at::TensorList, at::TensorList, at::TensorList, at::TensorList,
                            at::TensorList, at::TensorList, double, double, double, double, double,
                            bool, bool, const std::optional<at::Tensor>&,
                            const std::optional<at::Tensor>&);

template <typename State, typename Options>
void adam_step(torch::optim::Optimizer& optimizer, const Group& group, AdamKernel kernel) {
  Tensors parameters, gradients, means, squares, steps;
  StepTensors step_tensors;
  for (const auto& parameter : group.params()) {
    if (!parameter.grad().defined()) continue;
    auto& state = state_of<State>(optimizer, parameter);
    if (!state.exp_avg().defined()) {
      state.exp_avg(torch::zeros_like(parameter)).exp_avg_sq(torch::zeros_like(parameter));
    }
    state.step(state.step() + 1);
    parameters.push_back(parameter);
    gradients.push_back(parameter.grad());
    means.push_back(state.exp_avg());
    squares.push_back(state.exp_avg_sq());
    steps.push_back(step_tensors.of(state.step(), parameter.device()));
  }
  if (parameters.empty()) return;
  const auto& options = options_of<Options>(group);
  const auto [beta1, beta2] = options.betas();
  kernel(parameters, gradients, means, squares, {}, steps, options.lr(), beta1, beta2,
         options.weight_decay(), options.eps(), /*amsgrad=*/false, /*maximize=*/false, {}, {});
}

template <typename Options>
bool fits_adam(const std::vector<Group>& groups) {
  return std::ranges::all_of(groups, [](const Group& group) {
    return fits_kernel(group) && !options_of<Options>(group).amsgrad();
  });
}

/// Parameters of one kind: those that have a velocity, or those that get their first.
struct SgdTensors {
  Tensors parameters, gradients, velocities;

  void update(const torch::optim::SGDOptions& options, bool first) const {
    if (parameters.empty()) return;
    at::_fused_sgd_(parameters, gradients, velocities, options.weight_decay(), options.momentum(),
                    options.lr(), options.dampening(), options.nesterov(), /*maximize=*/false,
                    first);
  }
};

void sgd_step(torch::optim::Optimizer& optimizer, const Group& group) {
  const auto& options = options_of<torch::optim::SGDOptions>(group);
  SgdTensors first, later;
  for (const auto& parameter : group.params()) {
    if (!parameter.grad().defined()) continue;
    if (options.momentum() == 0) {
      later.parameters.push_back(parameter);
      later.gradients.push_back(parameter.grad());
      continue;
    }
    auto& state = state_of<torch::optim::SGDParamState>(optimizer, parameter);
    auto& tensors = state.momentum_buffer().defined() ? later : first;
    if (!state.momentum_buffer().defined()) state.momentum_buffer(torch::empty_like(parameter));
    tensors.parameters.push_back(parameter);
    tensors.gradients.push_back(parameter.grad());
    tensors.velocities.push_back(state.momentum_buffer());
  }
  first.update(options, true);
  later.update(options, false);
}

}  // namespace

torch::Tensor FusedAdam::step(LossClosure closure) {
  if (closure || !fits_adam<torch::optim::AdamOptions>(param_groups())) return Adam::step(closure);
  const torch::NoGradGuard no_grad;
  for (const auto& group : param_groups()) {
    adam_step<torch::optim::AdamParamState, torch::optim::AdamOptions>(*this, group,
                                                                       at::_fused_adam_);
  }
  return {};
}

torch::Tensor FusedAdamW::step(LossClosure closure) {
  if (closure || !fits_adam<torch::optim::AdamWOptions>(param_groups()))
    return AdamW::step(closure);
  const torch::NoGradGuard no_grad;
  for (const auto& group : param_groups()) {
    adam_step<torch::optim::AdamWParamState, torch::optim::AdamWOptions>(*this, group,
                                                                         at::_fused_adamw_);
  }
  return {};
}

torch::Tensor FusedSgd::step(LossClosure closure) {
  const auto& groups = param_groups();
  const bool fits =
      std::ranges::all_of(groups, [](const Group& group) { return fits_kernel(group); });
  if (closure || !fits) return SGD::step(closure);
  const torch::NoGradGuard no_grad;
  for (const auto& group : groups) sgd_step(*this, group);
  return {};
}

}  // namespace bimetal::optim

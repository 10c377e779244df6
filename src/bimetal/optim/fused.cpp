#include "bimetal/optim/fused.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/csrc/api/include/torch/optim.h>
#include <torch/csrc/api/include/torch/types.h>
#include <torch/csrc/api/include/torch/utils.h>

#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <tuple>
#include <utility>
#include <vector>

namespace bimetal::optim {
namespace {

using Group = torch::optim::OptimizerParamGroup;
using Tensors = std::vector<torch::Tensor>;

bool fits_kernel(const torch::Tensor& tensor) {
  return tensor.is_contiguous() && tensor.is_floating_point() && tensor.layout() == torch::kStrided;
}

/// Whether libtorch has it for where the tensor is.
bool has_kernel(const char* name, const torch::Tensor& tensor) {
  const auto kernel = c10::Dispatcher::singleton().findSchema({name, ""});
  return kernel && kernel->hasKernelForDispatchKey(c10::legacyExtractDispatchKey(tensor.key_set()));
}

/// Whether all parameters of the group that have a gradient can go through one call of `kernel`.
bool fits_kernel(const Group& group, const char* kernel) {
  const torch::Tensor* first = nullptr;
  return std::ranges::all_of(group.params(), [&](const torch::Tensor& parameter) {
    if (!parameter.grad().defined()) return true;
    if (!first && !has_kernel(kernel, parameter)) return false;
    if (!first) first = &parameter;
    return fits_kernel(parameter) && fits_kernel(parameter.grad()) &&
           parameter.scalar_type() == first->scalar_type() &&
           parameter.grad().scalar_type() == first->scalar_type() &&
           parameter.device() == first->device();
  });
}

/// One that is left out has not been counted for parameters without one.
bool all_have_gradients(const std::vector<Group>& groups) {
  return std::ranges::all_of(groups, [](const Group& group) {
    return std::ranges::all_of(
        group.params(), [](const torch::Tensor& parameter) { return parameter.grad().defined(); });
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
  /// `ahead`: by how many steps those that are asked for are, where defined.
  explicit StepTensors(torch::Tensor ahead) : ahead_(std::move(ahead)) {}

  torch::Tensor of(std::int64_t step, const torch::Device& device) {
    auto& tensor = tensors_[step];
    if (!tensor.defined()) {
      tensor =
          torch::full({}, static_cast<double>(step), torch::dtype(torch::kFloat32).device(device));
      if (ahead_.defined()) tensor.sub_(ahead_.squeeze());
    }
    return tensor;
  }

 private:
  torch::Tensor ahead_;
  std::map<std::int64_t, torch::Tensor> tensors_;
};

using AdamKernel = void (*)(at::TensorList, at::TensorList, at::TensorList, at::TensorList,
                            at::TensorList, at::TensorList, double, double, double, double, double,
                            bool, bool, const std::optional<at::Tensor>&,
                            const std::optional<at::Tensor>&);

template <typename State, typename Options>
void adam_step(torch::optim::Optimizer& optimizer, const Group& group, AdamKernel kernel,
               const SkippedSteps& skipped) {
  Tensors parameters, gradients, means, squares, steps;
  StepTensors step_tensors(skipped.ahead);
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
         options.weight_decay(), options.eps(), /*amsgrad=*/false, /*maximize=*/false, {},
         skipped.next.defined() ? std::optional(skipped.next) : std::nullopt);
}

template <typename Options>
bool fits_adam(const std::vector<Group>& groups, const char* kernel) {
  return std::ranges::all_of(groups, [&](const Group& group) {
    return fits_kernel(group, kernel) && !options_of<Options>(group).amsgrad();
  });
}

template <typename State, typename Options>
void adam_steps(torch::optim::Optimizer& optimizer, AdamKernel kernel, SkippedSteps& skipped) {
  const torch::NoGradGuard no_grad;
  const auto& found = skipped.next;
  if (!found.defined()) skipped.ahead.reset();  // the host has learnt of all
  if (found.defined() && !skipped.ahead.defined()) skipped.ahead = torch::zeros_like(found);
  for (const auto& group : optimizer.param_groups()) {
    adam_step<State, Options>(optimizer, group, kernel, skipped);
  }
  if (found.defined()) skipped.ahead.add_(found);
  skipped.next.reset();
}

template <typename State>
void forget_adam_step(torch::optim::Optimizer& optimizer, SkippedSteps& skipped) {
  for (const auto& [parameter, state] : optimizer.state()) {
    auto& adam = static_cast<State&>(*state);
    adam.step(adam.step() - 1);
  }
  if (skipped.ahead.defined()) skipped.ahead.sub_(1);
}

/// Parameters of one kind: those that have a velocity, or those that get their first.
struct SgdTensors {
  Tensors parameters, gradients, velocities;

  void update(const torch::optim::SGDOptions& options, bool first,
              const std::optional<torch::Tensor>& found) const {
    if (parameters.empty()) return;
    at::_fused_sgd_(parameters, gradients, velocities, options.weight_decay(), options.momentum(),
                    options.lr(), options.dampening(), options.nesterov(), /*maximize=*/false,
                    first, /*grad_scale=*/{}, found);
  }
};

bool fits_sgd(const std::vector<Group>& groups) {
  return std::ranges::all_of(
      groups, [](const Group& group) { return fits_kernel(group, "aten::_fused_sgd_"); });
}

void sgd_step(torch::optim::Optimizer& optimizer, const Group& group,
              const std::optional<torch::Tensor>& found) {
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
    // A missing first velocity must be 0, so that the next step makes it its gradient.
    if (found && !state.momentum_buffer().defined()) {
      state.momentum_buffer(torch::zeros_like(parameter));
    }
    auto& tensors = state.momentum_buffer().defined() ? later : first;
    if (!state.momentum_buffer().defined()) state.momentum_buffer(torch::empty_like(parameter));
    tensors.parameters.push_back(parameter);
    tensors.gradients.push_back(parameter.grad());
    tensors.velocities.push_back(state.momentum_buffer());
  }
  first.update(options, true, found);
  later.update(options, false, found);
}

}  // namespace

torch::Tensor FusedAdam::step(LossClosure closure) {
  using State = torch::optim::AdamParamState;
  using Options = torch::optim::AdamOptions;
  if (closure || !fits_adam<Options>(param_groups(), "aten::_fused_adam_")) {
    return Adam::step(closure);
  }
  adam_steps<State, Options>(*this, at::_fused_adam_, skipped_);
  return {};
}

bool FusedAdam::can_skip() const {
  return all_have_gradients(param_groups()) &&
         fits_adam<torch::optim::AdamOptions>(param_groups(), "aten::_fused_adam_");
}

void FusedAdam::forget_step() {
  forget_adam_step<torch::optim::AdamParamState>(*this, skipped_);
}

torch::Tensor FusedAdamW::step(LossClosure closure) {
  using State = torch::optim::AdamWParamState;
  using Options = torch::optim::AdamWOptions;
  if (closure || !fits_adam<Options>(param_groups(), "aten::_fused_adamw_")) {
    return AdamW::step(closure);
  }
  adam_steps<State, Options>(*this, at::_fused_adamw_, skipped_);
  return {};
}

bool FusedAdamW::can_skip() const {
  return all_have_gradients(param_groups()) &&
         fits_adam<torch::optim::AdamWOptions>(param_groups(), "aten::_fused_adamw_");
}

void FusedAdamW::forget_step() {
  forget_adam_step<torch::optim::AdamWParamState>(*this, skipped_);
}

torch::Tensor FusedSgd::step(LossClosure closure) {
  const auto& groups = param_groups();
  if (closure || !fits_sgd(groups)) return SGD::step(closure);
  const torch::NoGradGuard no_grad;
  const auto found = std::exchange(found_, {});
  for (const auto& group : groups) {
    sgd_step(*this, group, found.defined() ? std::optional(found) : std::nullopt);
  }
  return {};
}

bool FusedSgd::can_skip() const {
  const auto velocity_is_there = [this](const torch::Tensor& parameter) {
    const auto kept = state().find(parameter.unsafeGetTensorImpl());
    return kept != state().end() && static_cast<const torch::optim::SGDParamState&>(*kept->second)
                                        .momentum_buffer()
                                        .defined();
  };
  const bool from_zero = std::ranges::all_of(param_groups(), [&](const Group& group) {
    return options_of<torch::optim::SGDOptions>(group).dampening() == 0 ||
           std::ranges::all_of(group.params(), velocity_is_there);
  });
  return from_zero && all_have_gradients(param_groups()) && fits_sgd(param_groups());
}

}  // namespace bimetal::optim

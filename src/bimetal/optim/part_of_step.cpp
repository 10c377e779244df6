#include "bimetal/optim/part_of_step.h"

#include <torch/csrc/api/include/torch/optim.h>
#include <torch/csrc/api/include/torch/types.h>
#include <torch/csrc/api/include/torch/utils.h>

#include <cmath>
#include <memory>
#include <utility>
#include <vector>

namespace bimetal::optim {
namespace {

/// Options as they are for a part, and put back at the end: they are saved with checkpoints.
class PartOptions {
 public:
  PartOptions(torch::optim::Optimizer& optimizer, double rate_scale, double part)
      : optimizer_(optimizer) {
    for (auto& group : optimizer.param_groups()) {
      auto& options = group.options();
      own_.push_back(options.clone());
      options.set_lr(options.get_lr() * rate_scale * rate_of(part));
      if (part < 1) take_part(options, part);
    }
    if (auto* own = dynamic_cast<Velocity*>(&optimizer)) own->set_part(part);
  }
  ~PartOptions() {
    auto own = own_.begin();
    for (auto& group : optimizer_.param_groups()) group.set_options(std::move(*own++));
    if (auto* velocity = dynamic_cast<Velocity*>(&optimizer_)) velocity->set_part(1);
  }
  PartOptions(const PartOptions&) = delete;
  PartOptions& operator=(const PartOptions&) = delete;

 private:
  /// Optimizers with a velocity of their own know how to step by a part.
  double rate_of(double part) const {
    return dynamic_cast<const Velocity*>(&optimizer_) != nullptr ? 1.0 : part;
  }
  static void take_part(torch::optim::OptimizerOptions& options, double part) {
    auto* sgd = dynamic_cast<torch::optim::SGDOptions*>(&options);
    // libtorch's Nesterov momentum knows no dampening.
    if (sgd == nullptr || sgd->momentum() == 0 || sgd->nesterov()) return;
    const double momentum = sgd->momentum(), decay = std::pow(momentum, part);
    const double weight = (1 - sgd->dampening()) * (1 - decay) / (1 - momentum);
    sgd->momentum(decay);
    sgd->dampening(1 - weight);
  }

  torch::optim::Optimizer& optimizer_;
  std::vector<std::unique_ptr<torch::optim::OptimizerOptions>> own_;
};

const torch::optim::OptimizerParamGroup* group_of(torch::optim::Optimizer& optimizer,
                                                  const torch::Tensor& parameter) {
  for (const auto& group : optimizer.param_groups()) {
    for (const auto& member : group.params()) {
      if (member.unsafeGetTensorImpl() == parameter.unsafeGetTensorImpl()) return &group;
    }
  }
  return nullptr;
}

/// m̂ / (√v̂ + ε), which Adam multiplies by its learning rate.
template <typename State, typename Options>
torch::Tensor adam_direction(const State& state, const Options& options) {
  const auto [beta1, beta2] = options.betas();
  const auto steps = static_cast<double>(state.step());
  const double bias1 = 1 - std::pow(beta1, steps), bias2 = 1 - std::pow(beta2, steps);
  auto scale = state.exp_avg_sq().sqrt().div_(std::sqrt(bias2)).add_(options.eps());
  return state.exp_avg().div(scale).div_(bias1);
}

template <typename State, typename Options>
torch::Tensor adam_direction_if(const torch::optim::OptimizerParamState& state,
                                const torch::optim::OptimizerOptions& options) {
  const auto* adam = dynamic_cast<const State*>(&state);
  const auto* of_adam = dynamic_cast<const Options*>(&options);
  if (adam == nullptr || of_adam == nullptr || adam->step() == 0) return {};
  return adam_direction(*adam, *of_adam);
}

/// The amount that a whole step at rate 1 would subtract; undefined if nothing is known.
torch::Tensor direction(const torch::optim::OptimizerParamState& state,
                        const torch::optim::OptimizerOptions& options) {
  if (const auto* sgd = dynamic_cast<const torch::optim::SGDParamState*>(&state)) {
    return sgd->momentum_buffer();
  }
  const auto adam =
      adam_direction_if<torch::optim::AdamParamState, torch::optim::AdamOptions>(state, options);
  if (adam.defined()) return adam;
  return adam_direction_if<torch::optim::AdamWParamState, torch::optim::AdamWOptions>(state,
                                                                                      options);
}

}  // namespace

void step_by_part(torch::optim::Optimizer& optimizer, double rate_scale, double part) {
  const PartOptions options(optimizer, rate_scale, part);
  optimizer.step();
}

void look_ahead(torch::optim::Optimizer& optimizer, const torch::Tensor& parameter, double steps,
                double rate_scale, torch::Tensor& values) {
  const torch::NoGradGuard no_grad;
  if (const auto* own = dynamic_cast<const Velocity*>(&optimizer)) {
    const auto velocity = own->velocity_of(parameter);
    if (velocity.defined()) values.sub_(velocity, steps);
    return;
  }
  const auto* group = group_of(optimizer, parameter);
  const auto state = optimizer.state().find(parameter.unsafeGetTensorImpl());
  if (group == nullptr || state == optimizer.state().end()) return;
  const auto change = direction(*state->second, group->options());
  if (change.defined()) values.sub_(change, steps * rate_scale * group->options().get_lr());
}

}  // namespace bimetal::optim

#include "bimetal/optim/layer_wise.h"

#include <ATen/OpMathType.h>
#include <fmt/format.h>
#include <torch/csrc/api/include/torch/optim.h>
#include <torch/csrc/api/include/torch/types.h>

#include <cmath>
#include <tuple>

#include "bimetal/base/error.h"

namespace bimetal::optim {

bool is_adapted(const torch::Tensor& parameter) {
  return parameter.dim() >= 2;
}

torch::Tensor norm_of(const torch::Tensor& tensor) {
  // Rows first: torch's CPU sums squares one after the other in float32, which is off by 1e-3 at 20
  // million elements in a row.
  const auto rows = torch::linalg_vector_norm(tensor.flatten(1), 2, 1, /*keepdim=*/false,
                                              at::toOpMathType(tensor.scalar_type()));
  return torch::linalg_vector_norm(rows.unsqueeze(0), 2, 1).squeeze(0);
}

torch::Tensor trust_ratio(const torch::Tensor& ratio, const torch::Tensor& weight_norm,
                          const torch::Tensor& step_norm) {
  return torch::where((weight_norm > 0).logical_and(step_norm > 0), ratio, torch::ones_like(ratio));
}

void LambOptions::require_valid() const {
  const auto [beta1, beta2] = betas();
  const auto fits = lr() >= 0 && eps() >= 0 && weight_decay() >= 0 && beta1 >= 0 && beta1 < 1 &&
                    beta2 >= 0 && beta2 < 1;
  if (fits) return;
  throw Error(ErrorCode::InvalidArgument,
              fmt::format("LAMB takes a learning rate, epsilon and weight decay of at least 0 and "
                          "betas from 0 to below 1, not {}, {}, {}, {} and {}",
                          lr(), eps(), weight_decay(), beta1, beta2));
}

/// m̂ / (√v̂ + ε), after the moments have taken up the gradient.
torch::Tensor Lamb::adam_step(const torch::Tensor& parameter, const LambOptions& options) {
  const auto [beta1, beta2] = options.betas();
  auto& state = state_of(parameter);
  const auto& gradient = parameter.grad();
  if (state.step() == 0) {
    state.exp_avg(torch::zeros_like(parameter)).exp_avg_sq(torch::zeros_like(parameter));
  }
  const auto count = static_cast<double>(++state.step());
  state.exp_avg().mul_(beta1).add_(gradient, 1 - beta1);
  state.exp_avg_sq().mul_(beta2).addcmul_(gradient, gradient, 1 - beta2);
  auto denominator = state.exp_avg_sq().div(1 - std::pow(beta2, count)).sqrt_().add_(options.eps());
  return state.exp_avg().div(1 - std::pow(beta1, count)).div_(denominator);
}

void Lamb::update(torch::Tensor& parameter, const LambOptions& options) {
  auto step = adam_step(parameter, options);
  if (!is_adapted(parameter)) {
    parameter.sub_(step, options.lr());
    return;
  }
  step.add_(parameter, options.weight_decay());
  const auto weight_norm = norm_of(parameter);
  const auto step_norm = norm_of(step);
  const auto ratio = trust_ratio(weight_norm / step_norm, weight_norm, step_norm);
  parameter.sub_(step.mul_(options.lr() * ratio));
}

namespace {

/// γ λ (g + β w)
torch::Tensor scaled_gradient(const torch::Tensor& parameter, const LarsOptions& options) {
  const auto& gradient = parameter.grad();
  if (!is_adapted(parameter)) return gradient * options.lr();
  const double decay = options.weight_decay();
  const auto weight_norm = norm_of(parameter);
  const auto gradient_norm = norm_of(gradient);
  const auto ratio =
      trust_ratio(options.trust_coefficient() * weight_norm / (gradient_norm + decay * weight_norm),
                  weight_norm, gradient_norm);
  return gradient.add(parameter, decay).mul_(options.lr() * ratio);
}

}  // namespace

void LarsOptions::require_valid() const {
  const auto fits = lr() >= 0 && momentum() >= 0 && momentum() < 1 && weight_decay() >= 0 &&
                    trust_coefficient() >= 0;
  if (fits) return;
  throw Error(ErrorCode::InvalidArgument,
              fmt::format("LARS takes a learning rate, weight decay and trust coefficient of at "
                          "least 0 and a momentum from 0 to below 1, not {}, {}, {} and {}",
                          lr(), weight_decay(), trust_coefficient(), momentum()));
}

void Lars::update(torch::Tensor& parameter, const LarsOptions& options) {
  auto change = scaled_gradient(parameter, options);
  if (options.momentum() > 0) {
    const double decay = std::pow(options.momentum(), part_);
    auto& velocity = state_of(parameter).momentum_buffer();
    if (!velocity.defined()) velocity = torch::zeros_like(parameter);
    change = velocity.mul_(decay).add_(change, (1 - decay) / (1 - options.momentum()));
  }
  parameter.sub_(change, part_);
}

torch::Tensor Lars::velocity_of(const torch::Tensor& parameter) const {
  const auto found = state().find(parameter.unsafeGetTensorImpl());
  if (found == state().end()) return {};
  return static_cast<const torch::optim::SGDParamState&>(*found->second).momentum_buffer();
}

}  // namespace bimetal::optim

#include "bimetal/optim/lamb.h"

#include <fmt/format.h>
#include <torch/csrc/api/include/torch/types.h>

#include <cmath>
#include <tuple>

#include "bimetal/base/error.h"
#include "bimetal/optim/trust_ratio.h"

namespace bimetal::optim {

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

}  // namespace bimetal::optim

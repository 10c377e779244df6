#include "bimetal/optim/layer_wise.h"

#include <ATen/OpMathType.h>
#include <fmt/format.h>
#include <torch/csrc/api/include/torch/optim.h>
#include <torch/csrc/api/include/torch/types.h>

#include <cmath>
#include <tuple>
#include <utility>

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

namespace {

using Tensors = std::vector<torch::Tensor>;

/// On accelerators; 64 Mi are 256 MiB of float32.
constexpr std::int64_t kTogether = std::int64_t{1} << 26;

Tensors gradients_of(const Tensors& parameters) {
  Tensors gradients;
  for (const auto& parameter : parameters) gradients.push_back(parameter.grad());
  return gradients;
}

/// With a factor for each, which the host need not know: one operation on each.
void multiply(Tensors& tensors, const torch::Tensor& factors) {
  if (tensors.size() == 1) {
    tensors.front().mul_(factors);
    return;
  }
  const auto each = factors.unbind();
  for (std::size_t i = 0; i < tensors.size(); ++i) tensors[i].mul_(each[i]);
}

}  // namespace

std::size_t at_once(std::span<const torch::Tensor> parameters, std::int64_t elements) {
  const auto& first = parameters.front();
  if (elements < 0) elements = first.is_cpu() ? 0 : kTogether;
  auto sum = first.numel();
  std::size_t count = 1;
  for (; count < parameters.size(); ++count) {
    const auto& next = parameters[count];
    sum += next.numel();
    const bool alike = next.device() == first.device() && next.scalar_type() == first.scalar_type();
    if (!alike || sum > elements) break;
  }
  return count;
}

torch::Tensor norms_of(const std::vector<torch::Tensor>& tensors) {
  if (tensors.size() == 1) return norm_of(tensors.front());
  // The kernel of accelerators always adds up in one order. The CPU's order depends on the number
  // of threads.
  if (!tensors.front().is_cpu()) {
    return torch::stack(at::_foreach_norm(tensors, 2, at::toOpMathType(tensors[0].scalar_type())));
  }
  Tensors norms;
  for (const auto& tensor : tensors) norms.push_back(norm_of(tensor));
  return torch::stack(norms);
}

/// m̂ / (√v̂ + ε), after the moments have taken up the gradients.
std::vector<torch::Tensor> Lamb::adam_steps(const Tensors& parameters, const LambOptions& options) {
  const auto [beta1, beta2] = options.betas();
  const auto gradients = gradients_of(parameters);
  Tensors means, squares;
  std::vector<at::Scalar> mean_parts, square_parts;
  for (const auto& parameter : parameters) {
    auto& state = state_of(parameter);
    if (state.step() == 0) {
      state.exp_avg(torch::zeros_like(parameter)).exp_avg_sq(torch::zeros_like(parameter));
    }
    const auto count = static_cast<double>(++state.step());
    means.push_back(state.exp_avg());
    squares.push_back(state.exp_avg_sq());
    mean_parts.emplace_back(1 - std::pow(beta1, count));
    square_parts.emplace_back(1 - std::pow(beta2, count));
  }
  at::_foreach_mul_(means, beta1);
  at::_foreach_add_(means, gradients, 1 - beta1);
  at::_foreach_mul_(squares, beta2);
  at::_foreach_addcmul_(squares, gradients, gradients, 1 - beta2);
  auto denominators = at::_foreach_div(squares, square_parts);
  at::_foreach_sqrt_(denominators);
  at::_foreach_add_(denominators, options.eps());
  auto steps = at::_foreach_div(means, mean_parts);
  at::_foreach_div_(steps, denominators);
  return steps;
}

void Lamb::update(const Tensors& parameters, const LambOptions& options, bool adapted) {
  auto steps = adam_steps(parameters, options);
  if (!adapted) {
    at::_foreach_add_(parameters, steps, -options.lr());
    return;
  }
  at::_foreach_add_(steps, parameters, options.weight_decay());
  const auto weight_norms = norms_of(parameters);
  const auto step_norms = norms_of(steps);
  const auto ratios = trust_ratio(weight_norms / step_norms, weight_norms, step_norms);
  multiply(steps, options.lr() * ratios);
  at::_foreach_add_(parameters, steps, -1);
}

namespace {

/// γ λ (g + β w)
Tensors scaled_gradients(const Tensors& parameters, const LarsOptions& options, bool adapted) {
  const auto gradients = gradients_of(parameters);
  if (!adapted) return at::_foreach_mul(gradients, options.lr());
  const double decay = options.weight_decay();
  const auto weight_norms = norms_of(parameters);
  const auto gradient_norms = norms_of(gradients);
  const auto ratios = trust_ratio(
      options.trust_coefficient() * weight_norms / (gradient_norms + decay * weight_norms),
      weight_norms, gradient_norms);
  auto changes = at::_foreach_add(gradients, parameters, decay);
  multiply(changes, options.lr() * ratios);
  return changes;
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

void Lars::update(const Tensors& parameters, const LarsOptions& options, bool adapted) {
  auto changes = scaled_gradients(parameters, options, adapted);
  if (options.momentum() > 0) {
    const double decay = std::pow(options.momentum(), part_);
    Tensors velocities;
    for (const auto& parameter : parameters) {
      auto& velocity = state_of(parameter).momentum_buffer();
      if (!velocity.defined()) velocity = torch::zeros_like(parameter);
      velocities.push_back(velocity);
    }
    at::_foreach_mul_(velocities, decay);
    at::_foreach_add_(velocities, changes, (1 - decay) / (1 - options.momentum()));
    changes = std::move(velocities);
  }
  at::_foreach_add_(parameters, changes, -part_);
}

torch::Tensor Lars::velocity_of(const torch::Tensor& parameter) const {
  const auto found = state().find(parameter.unsafeGetTensorImpl());
  if (found == state().end()) return {};
  return static_cast<const torch::optim::SGDParamState&>(*found->second).momentum_buffer();
}

}  // namespace bimetal::optim

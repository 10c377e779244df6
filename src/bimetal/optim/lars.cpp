#include "bimetal/optim/lars.h"

#include <fmt/format.h>
#include <torch/csrc/api/include/torch/optim.h>
#include <torch/csrc/api/include/torch/types.h>

#include <cmath>

#include "bimetal/base/error.h"
#include "bimetal/optim/trust_ratio.h"

namespace bimetal::optim {
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

#include "bimetal/optim/clip.h"

#include <torch/csrc/api/include/torch/optim.h>
#include <torch/csrc/api/include/torch/types.h>
#include <torch/csrc/api/include/torch/utils.h>

namespace bimetal::optim {

GradientLimits limits_of(const job::TrainConfig& config) {
  return {.norm = config.clip_norm, .value = config.clip_value};
}

std::vector<torch::Tensor> gradients_of(const torch::optim::Optimizer& optimizer) {
  return gradients_of(optimizer, [](const torch::Tensor&) { return true; });
}

std::vector<torch::Tensor> gradients_of(
    const torch::optim::Optimizer& optimizer,
    const std::function<bool(const torch::Tensor& parameter)>& wanted) {
  std::vector<torch::Tensor> gradients;
  for (const auto& group : optimizer.param_groups()) {
    for (const auto& parameter : group.params()) {
      if (parameter.grad().defined() && wanted(parameter)) gradients.push_back(parameter.grad());
    }
  }
  return gradients;
}

void clip_values(const std::vector<torch::Tensor>& gradients, double limit) {
  if (gradients.empty()) return;
  const torch::NoGradGuard no_grad;
  at::_foreach_clamp_min_(gradients, -limit);
  at::_foreach_clamp_max_(gradients, limit);
}

torch::Tensor norm_where_they_are(const std::vector<torch::Tensor>& gradients) {
  if (gradients.empty()) return torch::zeros({});
  const torch::NoGradGuard no_grad;
  auto norms = at::_foreach_norm(gradients, 2);
  // The norms have different types if the parameters do.
  for (auto& norm : norms) norm = norm.to(norms.front().scalar_type());
  return at::stack(norms).norm();
}

double norm_of_gradients(const std::vector<torch::Tensor>& gradients) {
  return gradients.empty() ? 0 : norm_where_they_are(gradients).item<double>();
}

double clip_factor(double norm, double limit) {
  const double factor = limit / (norm + 1e-6);
  return factor < 1 ? factor : 1;
}

void clip_norm(const std::vector<torch::Tensor>& gradients, double norm, double limit) {
  const double factor = clip_factor(norm, limit);
  if (gradients.empty() || factor == 1) return;
  const torch::NoGradGuard no_grad;
  at::_foreach_mul_(gradients, factor);
}

void clip_norm_there(const std::vector<torch::Tensor>& gradients, const torch::Tensor& norm,
                     double limit) {
  if (gradients.empty()) return;
  const torch::NoGradGuard no_grad;
  // As the host computes it, in float64 where the device has that.
  const auto wide = norm.is_mps() ? norm : norm.to(torch::kFloat64);
  const auto factor = torch::full_like(wide, limit).div_(wide + 1e-6).clamp_max_(1);
  at::_foreach_mul_(gradients, factor.to(gradients.front().scalar_type()));
}

void clip(const std::vector<torch::Tensor>& gradients, const GradientLimits& limits) {
  if (limits.value > 0) clip_values(gradients, limits.value);
  if (limits.norm > 0) clip_norm(gradients, norm_of_gradients(gradients), limits.norm);
}

}  // namespace bimetal::optim

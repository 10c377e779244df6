#pragma once
// Limits of the gradients: by norm and by value, between the backward pass and the update.

#include <torch/csrc/api/include/torch/optim/optimizer.h>
#include <torch/csrc/api/include/torch/types.h>

#include <functional>
#include <vector>

#include "bimetal/job/job_config.h"
#include "bimetal/optim/gradient_limits.h"

namespace bimetal::optim {

/// train.clip_norm and train.clip_value.
GradientLimits limits_of(const job::TrainConfig& config);

/// The gradients of the optimizer's parameters that have one, in its order; they share memory with
/// the parameters' grad().
std::vector<torch::Tensor> gradients_of(const torch::optim::Optimizer& optimizer);

/// The gradients of those of the optimizer's parameters that `wanted` accepts.
std::vector<torch::Tensor> gradients_of(
    const torch::optim::Optimizer& optimizer,
    const std::function<bool(const torch::Tensor& parameter)>& wanted);

/// Brings each element into [-limit, limit], as torch.nn.utils.clip_grad_value_. NaN stays.
void clip_values(const std::vector<torch::Tensor>& gradients, double limit);

/// The Euclidean norm of all elements together, computed in the gradients' own type; waits for the
/// device. 0 of none; NaN or infinity if there is one among the elements.
double norm_of_gradients(const std::vector<torch::Tensor>& gradients);

/// The same as a tensor of one number where the gradients are, which the device need not have
/// computed yet.
torch::Tensor norm_where_they_are(const std::vector<torch::Tensor>& gradients);

/// The factor that makes gradients of that norm no longer than `limit`, as in
/// torch.nn.utils.clip_grad_norm_: limit / (norm + 1e-6), at most 1.
double clip_factor(double norm, double limit);

/// Multiplies them by that.
void clip_norm(const std::vector<torch::Tensor>& gradients, double norm, double limit);

/// The same where the gradients are: `norm` as norm_where_they_are() has it.
void clip_norm_there(const std::vector<torch::Tensor>& gradients, const torch::Tensor& norm,
                     double limit);

/// Both, the values first, where one process sees all gradients.
void clip(const std::vector<torch::Tensor>& gradients, const GradientLimits& limits);

}  // namespace bimetal::optim

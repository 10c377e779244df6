#pragma once
// What LARS and LAMB have in common: which parameters they adapt, and the norms of whole tensors.
// Private to lars.cpp and lamb.cpp. Pure functions, safe from any thread.

#include <torch/csrc/api/include/torch/types.h>

namespace bimetal::optim {

/// Whether the rate of `parameter` is adapted and its weights decay: from two dimensions on
/// (matrices, kernels). What has one or none (biases, scales and shifts of normalizations) is
/// exempt from both, as is usual.
bool is_adapted(const torch::Tensor& parameter);

/// ‖tensor‖₂ over all elements, for at least two dimensions: a scalar on the tensor's device, in
/// the type itself or, for 16-bit types, float32. On the CPU its bits don't depend on the number of
/// threads, so that ranks with unlike numbers of them keep equal parameters.
torch::Tensor norm_of(const torch::Tensor& tensor);

/// `ratio` where both norms are above 0; 1 where one is 0, which says nothing about a good length.
torch::Tensor trust_ratio(const torch::Tensor& ratio, const torch::Tensor& weight_norm,
                          const torch::Tensor& step_norm);

}  // namespace bimetal::optim

#pragma once
// An exchange between ranks as a step of autograd's graph.

#include <torch/csrc/api/include/torch/types.h>

#include <functional>

namespace bimetal::parallel::tensor {

using Exchanged = std::function<torch::Tensor(const torch::Tensor&)>;

/// there(x), whose gradient by x is back(gradient by it), whose own is there() again: the second is
/// the first's adjoint. Both run without gradients of their own, and live as long as the graph.
torch::Tensor both_ways(const torch::Tensor& x, Exchanged there, Exchanged back);

}  // namespace bimetal::parallel::tensor

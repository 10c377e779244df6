#include "bimetal/train/trust_ratio.h"

#include <ATen/OpMathType.h>
#include <torch/torch.h>

namespace bimetal::train {

bool is_adapted(const torch::Tensor& parameter) {
  return parameter.dim() >= 2;
}

torch::Tensor norm_of(const torch::Tensor& tensor) {
  // Rows first: each is summed by one thread, however many there are, and errors of rounding grow
  // with a row's length instead of the tensor's.
  const auto rows = torch::linalg_vector_norm(tensor.flatten(1), 2, 1, /*keepdim=*/false,
                                              at::toOpMathType(tensor.scalar_type()));
  return torch::linalg_vector_norm(rows.unsqueeze(0), 2, 1).squeeze(0);
}

torch::Tensor trust_ratio(const torch::Tensor& ratio, const torch::Tensor& weight_norm,
                          const torch::Tensor& step_norm) {
  return torch::where((weight_norm > 0).logical_and(step_norm > 0), ratio, torch::ones_like(ratio));
}

}  // namespace bimetal::train

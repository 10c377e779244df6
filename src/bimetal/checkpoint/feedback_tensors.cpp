#include "bimetal/checkpoint/feedback_tensors.h"

#include <torch/csrc/api/include/torch/types.h>

namespace bimetal::checkpoint {

TensorMap feedback_tensors(const TrainingState& state) {
  TensorMap tensors;
  for (const auto& [name, values] : state.error_feedback) {
    tensors[name] = torch::tensor(torch::ArrayRef<float>(values));
  }
  return tensors;
}

std::vector<comm::NamedValues> feedback_values(const TensorMap& tensors) {
  std::vector<comm::NamedValues> all;
  for (const auto& [name, tensor] : tensors) {
    const auto floats = tensor.to(torch::kFloat32).flatten().contiguous();
    const auto* data = floats.const_data_ptr<float>();
    all.push_back({name, {data, data + floats.numel()}});
  }
  return all;
}

}  // namespace bimetal::checkpoint

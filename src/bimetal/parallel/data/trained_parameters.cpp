#include "bimetal/parallel/data/trained_parameters.h"

#include <fmt/format.h>
#include <torch/csrc/api/include/torch/types.h>

#include "bimetal/base/error.h"
#include "bimetal/parallel/tensor_buffer.h"

namespace bimetal::parallel {

std::vector<task::NamedTensor> trained_parameters(
    const std::vector<task::NamedTensor>& parameters) {
  std::vector<task::NamedTensor> trained;
  for (const auto& [name, tensor] : parameters) {
    if (!tensor.requires_grad()) continue;
    if (!comm_dtype(tensor.scalar_type())) {
      throw Error(ErrorCode::Unsupported,
                  fmt::format("gradients of parameter '{}' have type {}, which cannot be summed "
                              "over ranks; use float32, float64, float16 or bfloat16",
                              name, c10::toString(tensor.scalar_type())));
    }
    if (!trained.empty() && tensor.device() != trained.front().tensor.device()) {
      throw Error(ErrorCode::Unsupported,
                  fmt::format("parameter '{}' is on {} while others are on {}; data parallelism "
                              "keeps a rank's module on one device",
                              name, tensor.device().str(), trained.front().tensor.device().str()));
    }
    trained.push_back({name, tensor});
  }
  return trained;
}

}  // namespace bimetal::parallel

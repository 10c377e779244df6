#pragma once
// In which type a device computes what loses little by it: docs/precision.md.

#include <torch/csrc/api/include/torch/types.h>

#include <string_view>

namespace bimetal::precision {

/// Parameters, gradients and the optimizer are float32 in all of them.
enum class Precision {
  float32,
  bfloat16,  ///< float32's range with eight bits of precision
  float16,   ///< eleven bits, but nothing above 65504 or below 6e-8: needs a LossScaler
};

/// As jobs, reports and checkpoints name them. Error(InvalidArgument) for other names.
Precision precision_named(std::string_view name);
std::string_view name_of(Precision precision);

/// The type that matrices are multiplied in.
torch::Dtype dtype_of(Precision precision);

/// Error(Unsupported), with advice, unless `device` can: it is tried on two small matrices, forward
/// and backward. That a device emulates a type, slowly, is no error.
void require_precision(Precision precision, const torch::Device& device);

}  // namespace bimetal::precision

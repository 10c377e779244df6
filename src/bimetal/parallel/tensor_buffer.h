#pragma once
// Tensors as the fabric sees them.

#include <torch/csrc/api/include/torch/types.h>

#include <optional>

#include "bimetal/comm/group.h"

namespace bimetal::parallel {

/// The fabric's name of a torch type; empty for types that it cannot carry (complex, bool…).
std::optional<comm::DType> comm_dtype(torch::ScalarType dtype) noexcept;

/// The memory of a contiguous CPU tensor. The tensor must outlive every use of the buffer.
/// Error(InvalidArgument) for another layout or device, Error(Unsupported) for another type.
comm::Buffer tensor_buffer(const torch::Tensor& tensor);

}  // namespace bimetal::parallel

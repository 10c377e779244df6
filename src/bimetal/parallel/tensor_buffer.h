#pragma once
// Tensors as buffers of the fabric.

#include <torch/csrc/api/include/torch/types.h>

#include <cstddef>
#include <cstdint>
#include <optional>

#include "bimetal/comm/group.h"

namespace bimetal::parallel {

/// The fabric's name of a torch type; empty for types that it cannot carry (complex, bool…).
std::optional<comm::DType> comm_dtype(torch::ScalarType dtype) noexcept;

/// The same for a tensor; Error(Unsupported) for types that it cannot carry.
comm::DType comm_dtype_of(const torch::Tensor& tensor);

/// The memory of a contiguous CPU tensor. The tensor must outlive every use of the buffer.
/// Error(InvalidArgument) for another layout or device, Error(Unsupported) for another type.
comm::Buffer tensor_buffer(const torch::Tensor& tensor);

}  // namespace bimetal::parallel

#pragma once
// Tensors in memory that all ranks of a host see.
//
// Tensors as buffers of the fabric.

#include <torch/csrc/api/include/torch/types.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>

#include "bimetal/comm/group.h"

namespace bimetal::parallel {

/// Memory of one Group::allocate(), out of which CPU tensors come and into which they go back: what
/// collectives read of them they read where it is. A handle; the memory lives as long as any of
/// these or of their tensors. Thread-safe.
class GroupRoom {
 public:
  /// None: all tensors are ordinary ones.
  GroupRoom() = default;
  /// Collective, with the same number of bytes on all ranks; none where they share no memory, or
  /// where some have no tensors for it to be `here`. Errors: those of Group::allocate().
  GroupRoom(comm::Group& group, std::size_t bytes, bool here = true);

  /// The bytes that tensors of these sizes take in it, all at once.
  static std::size_t bytes_for(std::span<const std::size_t> tensors);

  /// A tensor with undefined contents. It is in ordinary memory if there is no room left.
  torch::Tensor take(std::int64_t count, torch::ScalarType dtype) const;

 private:
  class Places;
  std::shared_ptr<Places> places_;
};

/// The fabric's name of a torch type; empty for types that it cannot carry (complex, bool…).
std::optional<comm::DType> comm_dtype(torch::ScalarType dtype) noexcept;

/// The same for a tensor; Error(Unsupported) for types that it cannot carry.
comm::DType comm_dtype_of(const torch::Tensor& tensor);

/// The memory of a contiguous CPU tensor. The tensor must outlive every use of the buffer.
/// Error(InvalidArgument) for another layout or device, Error(Unsupported) for another type.
comm::Buffer tensor_buffer(const torch::Tensor& tensor);

}  // namespace bimetal::parallel

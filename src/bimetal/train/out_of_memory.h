#pragma once
// Telling "the batch did not fit" from every other failure: libtorch reports it in many ways.

#include <torch/csrc/api/include/torch/types.h>

#include <exception>

namespace bimetal::train {

/// True for std::bad_alloc, an accelerator's c10::OutOfMemoryError, the CPU allocator's refusal,
/// oneDNN's failures to allocate, and bimetal::Error(OutOfMemory).
bool is_out_of_memory(const std::exception_ptr& error) noexcept;

/// Gives memory that libtorch keeps for reuse back to the device, so that smaller tensors fit.
void release_cached_memory(const torch::Device& device);

}  // namespace bimetal::train

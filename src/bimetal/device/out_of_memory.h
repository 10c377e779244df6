#pragma once
// Telling "there was no memory for it" from every other failure, which libtorch reports in many
// ways, and making room for the next try.

#include <torch/csrc/api/include/torch/types.h>

#include <exception>
#include <functional>

namespace bimetal::device {

/// True for std::bad_alloc, an accelerator's c10::OutOfMemoryError, the CPU allocator's refusal,
/// oneDNN's failures to allocate, and bimetal::Error(OutOfMemory).
bool is_out_of_memory(const std::exception_ptr& error) noexcept;

/// Memory that libtorch keeps for reuse: smaller tensors fit then. Errors: the device's.
void give_memory_back(const torch::Device& device);

/// Does `work`, and returns nothing; or, if there was no memory for it, what says so: then
/// give_memory_back() has been called. Rethrows all else.
std::exception_ptr without_memory_for(const torch::Device& device,
                                      const std::function<void()>& work);

}  // namespace bimetal::device

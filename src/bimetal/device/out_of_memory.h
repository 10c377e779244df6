#pragma once
// Telling "there was no memory for it" from every other failure, which libtorch reports in many
// ways.

#include <exception>

namespace bimetal::device {

/// True for std::bad_alloc, an accelerator's c10::OutOfMemoryError, the CPU allocator's refusal,
/// oneDNN's failures to allocate, and bimetal::Error(OutOfMemory).
bool is_out_of_memory(const std::exception_ptr& error) noexcept;

}  // namespace bimetal::device

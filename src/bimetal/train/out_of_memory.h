#pragma once
// Telling "the batch did not fit" from every other failure, which libtorch reports in many ways,
// and making room for the next try.

#include <torch/csrc/api/include/torch/types.h>

#include <cstdint>
#include <exception>
#include <functional>
#include <string>

#include "bimetal/progress/rank_figures.h"

namespace bimetal::train {

/// True for std::bad_alloc, an accelerator's c10::OutOfMemoryError, the CPU allocator's refusal,
/// oneDNN's failures to allocate, and bimetal::Error(OutOfMemory).
bool is_out_of_memory(const std::exception_ptr& error) noexcept;

/// Does `work`, and returns nothing; or, if there was no memory for it, what says so: then memory
/// that libtorch keeps for reuse is given back to the device, so that smaller tensors fit. Rethrows
/// all else.
std::exception_ptr without_memory_for(const torch::Device& device,
                                      const std::function<void()>& work);

/// What is done about a rank's lack of memory, for people to read. `cap`: most that it gets from
/// now on.
std::string remedy(const progress::RankFigures& rank, std::int64_t cap);

}  // namespace bimetal::train

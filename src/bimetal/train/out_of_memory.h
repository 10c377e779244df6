#pragma once
// What is done where a batch did not fit: making room for the next try, and saying so.

#include <torch/csrc/api/include/torch/types.h>

#include <cstdint>
#include <exception>
#include <functional>
#include <string>

#include "bimetal/device/out_of_memory.h"
#include "bimetal/progress/rank_figures.h"

namespace bimetal::train {

using device::is_out_of_memory;

/// Does `work`, and returns nothing; or, if there was no memory for it, what says so: then memory
/// that libtorch keeps for reuse is given back to the device, so that smaller tensors fit. Rethrows
/// all else.
std::exception_ptr without_memory_for(const torch::Device& device,
                                      const std::function<void()>& work);

/// What is done about a rank's lack of memory, for people to read. `cap`: most that it gets from
/// now on.
std::string remedy(const progress::RankFigures& rank, std::int64_t cap);

}  // namespace bimetal::train

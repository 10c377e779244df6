#pragma once
// Optimizers that an own loop may take in place of libtorch's.

#include "bimetal/optim/cpu_adam.h"

namespace bimetal {

/// torch::optim::Adam and AdamW with the same options, states and numbers, by one pass over memory.
/// Parameters are float32 or float64, on any device. The states are in the host's memory, or where
/// ZeroOptions::offload_optimizer puts them. Without amsgrad. Use from one thread.
using Adam = optim::CpuAdam;
using AdamW = optim::CpuAdamW;  ///< libtorch's AdamW, likewise

}  // namespace bimetal

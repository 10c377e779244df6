#pragma once
// Adam's merged update (adam_kernel.h) of tensors, by all threads of at::parallel_for.

#include <torch/csrc/api/include/torch/types.h>

#include "bimetal/optim/adam_kernel.h"

namespace bimetal::optim {

/// Of as many elements each, contiguous and on the CPU; all of one type, float32 or float64, but
/// for `bfloat16`, which may be undefined: no copy then.
struct AdamTensors {
  torch::Tensor parameter, gradient, mean, square;
  torch::Tensor bfloat16 = {};
};

/// Steps them, without autograd. Error(InvalidArgument) for other tensors. Safe from any thread for
/// tensors of its own.
void adam_update(const AdamTensors& tensors, const AdamNumbers& numbers);

}  // namespace bimetal::optim

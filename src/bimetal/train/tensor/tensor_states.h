#pragma once
// Between what an optimizer of whole tensors has learnt, as checkpoints hold it, and that of a
// tensor rank's parts of them.

#include <torch/csrc/api/include/torch/optim/optimizer.h>

#include "bimetal/checkpoint/safetensors.h"
#include "bimetal/parallel/tensor/tensor_model.h"

namespace bimetal::train {

/// This rank's part of `learnt`, which names its tensors as checkpoint::optimizer_tensors does.
checkpoint::TensorMap part_of_states(const checkpoint::TensorMap& learnt,
                                     const parallel::tensor::TensorModel& model);

/// The way back, of what each rank's optimizer of model.model()'s parameters has learnt: on the
/// first tensor rank; empty elsewhere. Collective.
checkpoint::TensorMap gather_states(const parallel::tensor::TensorModel& model,
                                    const torch::optim::Optimizer& of_parts);

}  // namespace bimetal::train

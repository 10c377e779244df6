#pragma once
// Between what an optimizer of a stage's whole tensors has learnt and that of the pieces which each
// of the stage's replicas keeps of them: a pipeline's checkpoints are put together whole.

#include <torch/csrc/api/include/torch/optim/optimizer.h>

#include "bimetal/checkpoint/safetensors.h"
#include "bimetal/parallel/shard/sharded_model.h"
#include "bimetal/task/model_state.h"

namespace bimetal::train {

/// Gives `of_pieces`, which steps `sharded`'s pieces, its part of what `whole` has learnt about
/// `model`.
void take_states(const torch::optim::Optimizer& whole, const task::ModelState& model,
                 const parallel::shard::ShardedModel& sharded, torch::optim::Optimizer& of_pieces);

/// What the optimizers of all of sharded.group() have learnt, put together on its rank 0 as
/// checkpoint::optimizer_tensors names it; empty elsewhere. Collective.
checkpoint::TensorMap gather_states(const parallel::shard::ShardedModel& sharded,
                                    const torch::optim::Optimizer& of_pieces);

}  // namespace bimetal::train

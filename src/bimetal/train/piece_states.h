#pragma once
// Between checkpoints and the pieces of parameters that a rank keeps, with what its optimizer has
// learnt about them.

#include <torch/csrc/api/include/torch/optim/optimizer.h>

#include <functional>

#include "bimetal/checkpoint/slices/save_slices.h"
#include "bimetal/checkpoint/slices/shared_reader.h"
#include "bimetal/parallel/shard/sharded_model.h"
#include "bimetal/task/model_state.h"
#include "bimetal/task/unit.h"

namespace bimetal::train {

/// This rank's part of a checkpoint: its pieces and their states, and on rank 0 what is not cut up
/// of `model`. The tensors themselves, not copies.
checkpoint::OwnSlices own_slices(const parallel::shard::ShardedModel& sharded,
                                 const task::ModelState& model,
                                 const torch::optim::Optimizer& of_pieces);

/// What is not cut up of `model`, from a checkpoint of that model.
void take_uncut(checkpoint::OpenCheckpoint& saved, const task::ModelState& model);

/// Gives the pieces and `of_pieces`, which steps them, their values and states of `saved`, a
/// checkpoint of that model. Nobody reads more than its own. Collective. Errors: InvalidArgument
/// for states that do not fit; SharedReader's.
void take_pieces(checkpoint::SharedReader& saved, const parallel::shard::ShardedModel& sharded,
                 torch::optim::Optimizer& of_pieces);

/// Gives the pieces the values that `values` makes.
void take_drawn(const std::function<void(const task::UnitMade& made)>& values,
                const parallel::shard::ShardedModel& sharded);

}  // namespace bimetal::train

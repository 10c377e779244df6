#pragma once
// Moves pieces of parameters between checkpoints and a rank, whatever has cut them, with its
// optimizer's state for them.

#include <torch/csrc/api/include/torch/optim/optimizer.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "bimetal/checkpoint/parts/part_slices.h"
#include "bimetal/checkpoint/slices/save_slices.h"
#include "bimetal/checkpoint/slices/shared_reader.h"
#include "bimetal/parallel/shard/sharded_model.h"
#include "bimetal/parallel/tensor/tensor_model.h"
#include "bimetal/task/task.h"
#include "bimetal/task/unit.h"

namespace bimetal::train {

using checkpoint::KeptPiece;
using checkpoint::KeptPieces;
using checkpoint::part_pieces;
using checkpoint::whole_pieces;

/// The pieces of a rank's shards.
KeptPieces shard_pieces(const std::vector<parallel::shard::Piece>& shards);
/// Shards of the parts that tensor rank `rank` has.
KeptPieces shard_pieces(const std::vector<parallel::shard::Piece>& shards,
                        const parallel::tensor::Cuts& cuts, int rank);

/// The pieces of `model`, which is a whole model or the part of a rank in a mesh. `shards`: nullptr
/// if there are none. `parts`: nullptr if tensors are not in parts; otherwise pieces are of its
/// part of them.
KeptPieces kept_pieces(const task::ModelState& model, const parallel::shard::ShardedModel* shards,
                       const parallel::tensor::TensorModel* parts);
/// The rest of it.
task::ModelState kept_whole(task::ModelState model, const parallel::shard::ShardedModel* shards);

/// The tensors of `model` that are in nobody's shards: buffers, and parameters that are not trained
/// or have no elements.
task::ModelState uncut_of(task::ModelState model);

/// This rank's part of a checkpoint: those of `pieces` that it `gives`, and what `of_pieces`, which
/// steps all of them, has learnt about these. The tensors themselves, not copies.
checkpoint::OwnSlices own_slices(const KeptPieces& pieces, const torch::optim::Optimizer& of_pieces,
                                 const std::function<bool(const KeptPiece& piece)>& gives);

/// Adds all of `model`'s tensors.
void add_whole(checkpoint::OwnSlices& own, const task::ModelState& model);

/// Gives them their values of `saved`, a checkpoint that has them. Collective. Errors:
/// SharedReader's.
void take_whole(checkpoint::SharedReader& saved, const task::ModelState& model);

/// Error(InvalidArgument) if `saved` has learnt about others than `parameters`.
void require_known_states(const checkpoint::SharedReader& saved,
                          const std::vector<task::NamedTensor>& parameters);

/// Gives `pieces` and `of_pieces`, which steps them, their values and states of `saved`, a
/// checkpoint of that model or of one of which it is a part. Nobody reads more than its own;
/// `taken` is called after each. Collective. Errors: InvalidArgument for states that do not fit;
/// SharedReader's.
void take_pieces(
    checkpoint::SharedReader& saved, const KeptPieces& pieces, torch::optim::Optimizer& of_pieces,
    const std::function<void()>& taken = [] {});

/// Gives the pieces the values that `values` makes.
void take_drawn(const std::function<void(const task::UnitMade& made)>& values,
                const parallel::shard::ShardedModel& sharded);
/// Gives a part of the model its parameters' values, under their names in the whole.
void take_drawn(const std::function<void(const task::UnitMade& made)>& values,
                const task::Model& part);

}  // namespace bimetal::train

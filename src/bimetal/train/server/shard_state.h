#pragma once
// Between whole tensors, as checkpoints hold them, and the pieces that parameter servers keep.

#include <torch/csrc/api/include/torch/optim/optimizer.h>

#include <span>

#include "bimetal/parallel/server/parameter_server.h"
#include "bimetal/parallel/server/shard_store.h"
#include "bimetal/task/model_state.h"

namespace bimetal::train {

/// A server's parameters and what its optimizer has learnt, as bytes.
parallel::server::Body shard_state(parallel::server::ShardStore& store);

/// Puts the servers' states together into `model` and `optimizer`, whose parameters are those of
/// the plan, in its order. Error(CorruptData), naming the server, for bytes that do not fit.
void assemble_state(std::span<const parallel::server::ServerState> states,
                    const parallel::server::ShardPlan& plan, const task::ModelState& model,
                    torch::optim::Optimizer& optimizer);

/// Gives `store`'s optimizer its part of what `optimizer` has learnt about `model`.
void restore_shard(parallel::server::ShardStore& store, const torch::optim::Optimizer& optimizer,
                   const task::ModelState& model);

}  // namespace bimetal::train

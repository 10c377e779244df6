#pragma once
// Between whole tensors, as checkpoints hold them, and the pieces that parameter servers keep.

#include <torch/csrc/api/include/torch/nn/module.h>
#include <torch/csrc/api/include/torch/optim/optimizer.h>

#include <span>

#include "bimetal/parallel/server/parameter_server.h"
#include "bimetal/parallel/server/shard_store.h"

namespace bimetal::train {

/// A server's parameters and what its optimizer has learnt, as bytes.
parallel::server::Body shard_state(parallel::server::ShardStore& store);

/// Puts the servers' states together into `module` and `optimizer`, whose parameters are those of
/// the plan, in its order. Error(CorruptData), naming the server, for bytes that do not fit.
void assemble_state(std::span<const parallel::server::ServerState> states,
                    const parallel::server::ShardPlan& plan, torch::nn::Module& module,
                    torch::optim::Optimizer& optimizer);

/// Gives `store`'s optimizer its part of what `optimizer` has learnt about `module`.
void restore_shard(parallel::server::ShardStore& store, const torch::optim::Optimizer& optimizer,
                   const torch::nn::Module& module);

}  // namespace bimetal::train

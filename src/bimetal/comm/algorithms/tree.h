#pragma once
// Binomial trees: log2(n) levels, in which every rank below the root has one parent. Long messages
// flow through the levels part by part.

#include <cstddef>
#include <span>

#include "bimetal/comm/algorithms/reduction.h"
#include "bimetal/comm/dtype.h"
#include "bimetal/comm/mailbox/channel.h"

namespace bimetal::comm {

/// The root's `data` is copied to every rank.
void tree_broadcast(Channel& channel, std::span<std::byte> data, int root);

/// The root's `data` becomes the reduction over all ranks; elsewhere it is scratch.
void tree_reduce(Channel& channel, std::span<std::byte> data, int root, DType dtype, ReduceOp op);

/// `data` becomes the reduction over all ranks, in the same bits on each: to rank 0 and back.
void tree_all_reduce(Channel& channel, std::span<std::byte> data, const Reduction& reduction);

}  // namespace bimetal::comm

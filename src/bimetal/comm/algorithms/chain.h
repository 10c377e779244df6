#pragma once
// Chains: the ranks in a row, from the root on. Each passes on what it gets, part by part. Every
// link carries a message at most once each way, whatever the number of ranks; at the root of a
// binomial tree it is ⌈log₂n⌉ times. But a part takes n-1 steps to the end (the pipelined chain of
// Worringen, "Pipelining and overlapping for MPI collective operations", 2003).

#include <cstddef>
#include <span>

#include "bimetal/comm/algorithms/reduction.h"
#include "bimetal/comm/mailbox/channel.h"

namespace bimetal::comm {

/// Whether a chain is quicker than a tree: for long messages, from three ranks on. The same answer
/// on all ranks.
bool chain_suits(std::size_t bytes, int ranks);

/// The root's `data` is copied to every rank.
void chain_broadcast(Channel& channel, std::span<std::byte> data, int root);

/// The root's `data` becomes the reduction over all ranks; elsewhere it is scratch.
void chain_reduce(Channel& channel, std::span<std::byte> data, int root,
                  const Reduction& reduction);

}  // namespace bimetal::comm

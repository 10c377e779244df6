#pragma once
// Ring algorithms: every rank receives from its left neighbour and sends to its right one. Each
// moves (n-1)/n of the data over every link, the least possible (Patarasuk and Yuan, "Bandwidth
// optimal all-reduce algorithms for clusters of workstations", 2009), in n-1 steps. Segments flow
// in parts. A part that has arrived is combined and sent on at once, without waiting for the rest
// of its segment. So a step costs the latency of a part.

#include <cstddef>
#include <span>
#include <vector>

#include "bimetal/comm/algorithms/reduction.h"
#include "bimetal/comm/dtype.h"
#include "bimetal/comm/mailbox/channel.h"

namespace bimetal::comm {

/// One piece of memory per rank, in the order of the ranks. Sizes may differ, but not between
/// ranks.
using Segments = std::vector<std::span<std::byte>>;

/// `data` in n segments that differ by one element at most.
Segments even_segments(std::span<std::byte> data, int n, DType dtype);

/// Before: every rank holds its own version of all segments. After: rank r's segment r holds the
/// reduction over all ranks; its other segments are scratch.
void ring_reduce_scatter(Channel& channel, const Segments& segments, const Reduction& reduction);

/// Before: rank r holds segment r. After: every rank holds all of them.
void ring_all_gather(Channel& channel, const Segments& segments);

/// The same where ranks do not know how long the others' are: they tell each other first. Error:
/// CorruptData for lengths that no memory can hold, naming the first rank that is too long.
void ring_all_gather_bytes(Channel& channel, std::span<const std::byte> own, Gathered& all);

/// Before: every rank holds its own version of all segments. After: every rank holds the reduction
/// of all, in the same bits. The one after the other of the two above, without a pause between.
void ring_all_reduce(Channel& channel, const Segments& segments, const Reduction& reduction);

// Chains: the ranks in a row, from the root on. Each passes on its input, part by part. Every link
// carries a message at most once each way, whatever the number of ranks; at the root of a binomial
// tree it is ⌈log₂n⌉ times. But a part takes n-1 steps to the end (the pipelined chain of
// Worringen, "Pipelining and overlapping for MPI collective operations", 2003).

/// Whether a chain is quicker than a tree: for long messages, from three ranks on. The same answer
/// on all ranks.
bool chain_suits(std::size_t bytes, int ranks);

/// The root's `data` is copied to every rank.
void chain_broadcast(Channel& channel, std::span<std::byte> data, int root);

/// The root's `data` becomes the reduction over all ranks; elsewhere it is scratch.
void chain_reduce(Channel& channel, std::span<std::byte> data, int root,
                  const Reduction& reduction);

}  // namespace bimetal::comm

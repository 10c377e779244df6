#pragma once
// The all-reduce of one compressed call, on the thread that runs it. Every rank ends with the same
// bits. Steps and bytes: docs/compression.md.

#include <functional>
#include <span>

#include "bimetal/comm/algorithms/islands.h"
#include "bimetal/comm/compress/compression.h"
#include "bimetal/comm/dtype.h"
#include "bimetal/comm/mailbox/channel.h"

namespace bimetal::comm {

/// For a call that tag_of() accepts. Types other than float32 are taken through it. In a group of
/// one nothing is sent and so nothing lost. `islands` are the group's, for
/// CompressedLinks::between_islands.
void compressed_all_reduce(Channel& channel, Buffer data, ReduceOp op,
                           const Compression& compression, const Islands& islands);

/// The three kinds of schemes, on float32.
void dense_all_reduce(Channel& channel, std::span<float> data, ReduceOp op,
                      const Compression& compression);
void sparse_all_reduce(Channel& channel, std::span<float> data, ReduceOp op,
                       const Compression& compression);
void low_rank_all_reduce(Channel& channel, std::span<float> data, ReduceOp op,
                         const Compression& compression);

// A compressed all-reduce in which islands (ranks that have memory in common) count as one rank
// each. Their members add up through that memory, exactly. Only messages between islands are
// compressed, so links that are faster than the codec lose nothing.

/// Sums `data` over the ranks of a channel, compressed.
using CompressedSum = std::function<void(Channel& channel, std::span<float> data)>;

/// `data` becomes the sum (or average) over all ranks of the channel, in the same bits on each.
/// `between` runs on the first rank of each island, over these ranks, which alone keep error
/// feedback: on the others `memory`, if there is one, gets the same sizes and holds zeros.
void island_all_reduce(Channel& channel, std::span<float> data, ReduceOp op, const Islands& islands,
                       const Compression& compression, const CompressedSum& between);

}  // namespace bimetal::comm

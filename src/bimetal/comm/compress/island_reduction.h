#pragma once
// A compressed all-reduce in which islands (ranks that have memory in common) count as one rank
// each. Their members add up through that memory, exactly. Only messages between islands are
// compressed, so links that are faster than the codec lose nothing.

#include <functional>
#include <span>

#include "bimetal/comm/algorithms/islands.h"
#include "bimetal/comm/compress/compression.h"
#include "bimetal/comm/mailbox/channel.h"

namespace bimetal::comm {

/// Sums `data` over the ranks of a channel, compressed.
using CompressedSum = std::function<void(Channel& channel, std::span<float> data)>;

/// `data` becomes the sum (or average) over all ranks of the channel, in the same bits on each.
/// `between` runs on the first rank of each island, over these ranks, which alone keep error
/// feedback: on the others `memory`, if there is one, gets the same sizes and holds zeros.
void island_all_reduce(Channel& channel, std::span<float> data, ReduceOp op, const Islands& islands,
                       const Compression& compression, const CompressedSum& between);

}  // namespace bimetal::comm

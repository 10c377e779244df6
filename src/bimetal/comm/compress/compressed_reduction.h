#pragma once
// The all-reduce of one compressed call, on the thread that runs it. Every rank ends with the same
// bits. Steps and bytes: docs/compression.md.

#include <span>

#include "bimetal/comm/algorithms/islands.h"
#include "bimetal/comm/buffer.h"
#include "bimetal/comm/compress/compression.h"
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

}  // namespace bimetal::comm

#pragma once
// Ring algorithms: every rank receives from its left neighbour and sends to its right one. Each
// moves (n-1)/n of the data over every link, the least possible (Patarasuk and Yuan, "Bandwidth
// optimal all-reduce algorithms for clusters of workstations", 2009), in n-1 steps.

#include <cstddef>
#include <span>
#include <vector>

#include "bimetal/comm/channel.h"
#include "bimetal/comm/dtype.h"

namespace bimetal::comm {

/// One piece of memory per rank, in the order of the ranks.
using Segments = std::vector<std::span<std::byte>>;

/// Before: every rank holds its own version of all segments. After: rank r's segment r holds the
/// reduction over all ranks; its other segments are scratch.
void ring_reduce_scatter(Channel& channel, const Segments& segments, DType dtype, ReduceOp op);

/// Before: rank r holds segment r. After: every rank holds all of them.
void ring_all_gather(Channel& channel, const Segments& segments);

}  // namespace bimetal::comm

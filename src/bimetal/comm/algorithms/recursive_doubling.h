#pragma once
// All-reduce in log2(n) exchanges of the whole message: the fewest steps, for short messages whose
// latency counts. (Thakur, Rabenseifner and Gropp, "Optimization of collective communication
// operations in MPICH", 2005, section 4.5.)

#include <cstddef>
#include <span>

#include "bimetal/comm/dtype.h"
#include "bimetal/comm/mailbox/channel.h"

namespace bimetal::comm {

/// `data` becomes the reduction over all ranks, in the same bits on each.
void recursive_doubling_all_reduce(Channel& channel, std::span<std::byte> data, DType dtype,
                                   ReduceOp op);

}  // namespace bimetal::comm

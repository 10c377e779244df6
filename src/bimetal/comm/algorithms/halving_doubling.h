#pragma once
// Rabenseifner's all-reduce: reduce-scatter by recursive halving, then all-gather by recursive
// doubling. It sends as few bytes as a ring, in 2·log2(n) steps in place of 2(n-1). If n is no
// power of two, 2(n - 2^k) ranks first pair up, which costs them the whole message twice. (Thakur,
// Rabenseifner and Gropp, "Optimization of collective communication operations in MPICH", 2005,
// section 4.5.)

#include <cstddef>
#include <span>

#include "bimetal/comm/algorithms/reduction.h"
#include "bimetal/comm/mailbox/channel.h"

namespace bimetal::comm {

/// `data` becomes the reduction over all ranks, in the same bits on each.
void halving_doubling_all_reduce(Channel& channel, std::span<std::byte> data,
                                 const Reduction& reduction);

}  // namespace bimetal::comm

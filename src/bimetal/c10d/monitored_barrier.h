#pragma once
// A barrier that tells who is missing.

#include <cstdint>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <vector>

#include "bimetal/base/deadline.h"

namespace bimetal::c10d {

/// Every rank reports to the store; rank 0 waits for all and tells the others how it went. `number`
/// counts the barriers of the group from 1. `global_ranks[r]` is what messages call rank r (empty:
/// r itself). Error(Timeout) on every rank that has come, with the first rank missing as its rank
/// and all of them in its message; on ranks other than 0, if rank 0 itself is missing, naming it.
void monitored_barrier(::c10d::Store& store, int rank, int size, std::uint64_t number,
                       const std::vector<std::uint64_t>& global_ranks, Deadline deadline);

}  // namespace bimetal::c10d

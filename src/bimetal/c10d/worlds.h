#pragma once
// The process groups that live in this process. Those of torch's default groups have connections
// to every rank, which later groups of some of the ranks share.

#include <cstdint>
#include <optional>
#include <vector>

#include "bimetal/comm/group.h"

namespace bimetal::c10d {
class BimetalBackend;
}

namespace bimetal::c10d::worlds {

void add(BimetalBackend* backend);
void remove(BimetalBackend* backend);

/// The default group of the process that is `rank` in it, if it has all of `global_ranks`.
std::optional<comm::Group> find(int rank, const std::vector<std::uint64_t>& global_ranks);

/// Ends every living group in order, each by `deadline`. For a process's end: no thread of theirs
/// may outlive it.
void close_all(Deadline deadline);

}  // namespace bimetal::c10d::worlds

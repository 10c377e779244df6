#pragma once
// Collectives on data in memory that all ranks see. Each rank reads what it needs in everybody's
// memory, and in an all-reduce it writes there what it has reduced. Two steps are around that, and
// nothing goes through slots. Per rank, of n: an all-reduce reads and writes 1 for each byte of the
// buffer, a reduce-scatter reads 1 and writes its part, an all-gather copies the others' parts.

#include <memory>
#include <span>

#include "bimetal/comm/call.h"
#include "bimetal/comm/reduce/reduce_operators.h"
#include "bimetal/comm/shm/segment.h"
#include "bimetal/comm/shm/team.h"

namespace bimetal::comm {

/// Whether there is a way to run it so: all_reduce, reduce_scatter and all_gather.
bool others_reach(Operation operation);

/// What other ranks reach of this rank's data then; the rest may lie anywhere.
std::span<const std::byte> reached_by_others(const Call& call, const Operands& operands);

/// For operations that others_reach(). To be tried after ShmTeam::begin() and before anything else
/// of the call, by all ranks or none: each says where its data lie. False, on all ranks, if some
/// are not in the same arena as the others'; nothing has been done then. `arena` is the one that
/// holds what others reach of this rank's, or none.
bool run_in_place(ShmTeam& team, const Call& call, const Operands& operands,
                  const std::shared_ptr<const Arena>& arena, WaitGuard& guard);

}  // namespace bimetal::comm

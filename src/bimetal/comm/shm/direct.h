#pragma once
// All-reduce of buffers that all ranks see where they are: each rank reduces its piece of them,
// read from and written to everybody's memory. Nothing is copied; per rank and byte of the buffer,
// 1 is read and 1 written.

#include <memory>

#include "bimetal/comm/call.h"
#include "bimetal/comm/reduce/operands.h"
#include "bimetal/comm/shm/arena.h"
#include "bimetal/comm/shm/team.h"

namespace bimetal::comm {

/// To be tried after ShmTeam::begin() and before anything else of the call, by all ranks or none:
/// each says where its data lie. False, on all ranks, if some are not in the same arena as the
/// others'; nothing has been done then. `arena` is the one that holds this rank's data, or none.
bool all_reduce_in_place(ShmTeam& team, const Call& call, const Operands& operands,
                         const std::shared_ptr<const Arena>& arena, WaitGuard& guard);

}  // namespace bimetal::comm

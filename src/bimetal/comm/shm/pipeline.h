#pragma once
// Collectives on any number of bytes, through the slots. Data are cut into chunks, and while some
// ranks read one chunk, others write the next.

#include <memory>

#include "bimetal/comm/call.h"
#include "bimetal/comm/reduce/reduce_operators.h"
#include "bimetal/comm/shm/segment.h"
#include "bimetal/comm/shm/team.h"

namespace bimetal::comm {

/// What this rank knows of the memory that it is called on.
struct InPlace {
  bool possible = false;               ///< some arena has been made, which all ranks know alike
  std::shared_ptr<const Arena> arena;  ///< that holds what others reach of this rank's (direct.h)
};

/// Runs `call` on this rank. All-reduce and reduce: every rank reduces its piece of each chunk, so
/// that the arithmetic and the bytes read are spread evenly (reduce-scatter and all-gather within
/// the chunk). Per rank and byte of an all-reduce over n ranks: (n-1)/n copied in, 1 read for the
/// reduction, 2/n written, (n-1)/n copied out.
/// Where what others reach of all ranks' data lies in one arena they do so there (direct.h): true.
bool run_pipelined(ShmTeam& team, const Call& call, const Operands& operands,
                   const InPlace& in_place, WaitGuard& guard);

}  // namespace bimetal::comm

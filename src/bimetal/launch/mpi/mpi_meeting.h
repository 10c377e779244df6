#pragma once
// What the processes of mpirun must agree on before they can be ranks that meet by TCP.

#include "bimetal/base/deadline.h"
#include "bimetal/launch/rank_variables.h"

namespace bimetal::launch {

/// Collective over all processes that mpirun has started. Rank, hosts and sizes are MPI's; rank 0
/// chooses the meeting point (an address of its host, or MASTER_ADDR; a free port, or MASTER_PORT)
/// and the job's token, unless it has one, and gives them to the others. Returns the rank's
/// variables. Errors: those of net::make_mpi_mesh().
NamedValues meet_by_mpi(Deadline deadline);

}  // namespace bimetal::launch

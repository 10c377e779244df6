#pragma once
// Which rank this process is, whoever has started it: torchrun and its like by variables
// (rank_environment.h), Slurm's srun by variables of its own (slurm_environment.h), or mpirun,
// which MPI itself is asked about.

#include <optional>

#include "bimetal/base/deadline.h"
#include "bimetal/comm/transport.h"
#include "bimetal/launch/rank_environment.h"

namespace bimetal::launch {

/// Whether variables say that find_rank() will find one: MPI is not asked, which can be done but
/// once in a process's life.
bool looks_like_rank();

/// Nothing if this process was not started as a rank. Where RANK is set that counts. Else a process
/// that mpirun has started as one of several asks MPI, unless `asked` (or BIMETAL_TRANSPORT) is
/// tcp. Else a task of srun, one of several, is the rank that Slurm says. With transport mpi, MPI
/// is asked in any case, and must agree with RANK and WORLD_SIZE if these are set. Errors: those of
/// rank_from_environment(), slurm_task() and net::mpi_world(); InvalidArgument if RANK and MPI
/// disagree.
std::optional<RankEnvironment> find_rank(comm::Transport asked, Deadline deadline);

}  // namespace bimetal::launch

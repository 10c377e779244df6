#include "bimetal/launch/find_rank.h"

#include <fmt/format.h>

#include "bimetal/base/error.h"
#include "bimetal/launch/slurm/slurm_environment.h"
#include "bimetal/net/mpi/launch_environment.h"
#include "bimetal/net/mpi/mpi_mesh.h"

namespace bimetal::launch {
namespace {

RankEnvironment rank_in(const net::MpiWorld& world) {
  RankEnvironment env;
  env.rank = world.rank;
  env.world_size = world.size;
  env.local_rank = world.local_rank;
  env.local_world_size = world.local_size;
  env.store = StoreOwner::Nobody;
  return env;
}

/// A step of one task is a process like any other, as under mpirun.
std::optional<RankEnvironment> rank_by_slurm() {
  const auto task = slurm_task();
  if (!task || task->place.world_size == 1) return std::nullopt;
  // Processes that mpirun has started by srun inherit the variables of its helpers.
  const auto mpi = net::mpi::launch_environment();
  if (mpi && mpi->world_size != task->place.world_size) return std::nullopt;
  return rank_in(*task);
}

}  // namespace

bool looks_like_rank() {
  if (rank_from_environment()) return true;
  const auto mpi = net::mpi::launch_environment();
  const auto task = slurm_task();
  return (mpi && mpi->world_size != 1) || (task && task->place.world_size > 1);
}

std::optional<RankEnvironment> find_rank(comm::Transport asked, Deadline deadline) {
  const auto told = rank_from_environment();
  const auto transport = comm::transport_for(asked);
  if (transport != comm::Transport::mpi) {
    const bool by_mpi = !told && transport != comm::Transport::tcp && net::started_by_mpi();
    if (!by_mpi) return told ? told : rank_by_slurm();
  }
  const auto env = rank_in(net::mpi_world(deadline));
  if (told && (told->rank != env.rank || told->world_size != env.world_size)) {
    throw Error(ErrorCode::InvalidArgument,
                fmt::format("RANK and WORLD_SIZE say that this is rank {} of {}, but to MPI it is "
                            "rank {} of {}; unset RANK, or start the ranks by mpirun alone",
                            told->rank, told->world_size, env.rank, env.world_size),
                env.rank);
  }
  return env;
}

}  // namespace bimetal::launch

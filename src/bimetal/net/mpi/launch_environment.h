#pragma once
// What mpirun, mpiexec or srun tell their processes in the environment, before MPI itself is asked.

#include <functional>
#include <optional>
#include <string>

namespace bimetal::net::mpi {

enum class Family { open_mpi, mpich, unknown };

struct LaunchEnvironment {
  Family family = Family::unknown;  ///< whose launcher it was
  std::optional<int> world_size;    ///< how many processes it says it has started
};

/// Value of a variable, or nothing where it is not set. Stands for the process's environment.
using Variables = std::function<std::optional<std::string>(const char* name)>;

/// Nothing if no launcher of MPI has left its variables: OMPI_COMM_WORLD_SIZE (Open MPI), PMI_SIZE
/// (MPICH and its kin, srun --mpi=pmi2), PMIX_RANK (srun --mpi=pmix).
std::optional<LaunchEnvironment> launch_environment(const Variables& variables);
std::optional<LaunchEnvironment> launch_environment();

}  // namespace bimetal::net::mpi

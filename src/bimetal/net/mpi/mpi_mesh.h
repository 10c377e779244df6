#pragma once
// A mesh over MPI's point-to-point messages, for clusters whose network supports only MPI. The MPI
// library is loaded when it is needed (library.h); docs/running.md is the user's guide.
//
// The ranks are MPI's own: no store, no token, no addresses. MPI neither authenticates nor
// encrypts, so BIMETAL_ENCRYPTION=on is refused. mpirun ends all processes when one is lost. A
// process that is only stopped is found by the callers' deadlines.

#include <memory>
#include <string>

#include "bimetal/base/deadline.h"
#include "bimetal/net/mesh.h"

namespace bimetal::net {

/// This process's place among those that mpirun has started.
struct MpiWorld {
  int rank = 0;
  int size = 1;
  int local_rank = 0;   ///< among the ranks on this host
  int local_size = 1;   ///< ranks on this host
  std::string library;  ///< "Open MPI v4.1.4 …"
};

/// Whether mpirun, mpiexec or srun has started this process as one of several. Asks the environment
/// alone: no library is loaded.
bool started_by_mpi();

/// Starts MPI if need be, which all ranks must do. Errors: Unsupported where no MPI library is
/// found (names the ones tried), InvalidArgument if mpirun did not start this process or belongs to
/// another library, Timeout if not all ranks come.
MpiWorld mpi_world(Deadline deadline);

/// A mesh of all ranks. Several may exist; every rank must make them in the same order. Errors as
/// of mpi_world(); InvalidArgument where encryption is asked for.
std::unique_ptr<Mesh> make_mpi_mesh(Deadline deadline);

}  // namespace bimetal::net

#pragma once
// For ranks that another launcher than ours has started: mpirun, torchrun.

namespace bimetal::launch {

/// If the environment says that mpirun (Open MPI, MPICH and its kin) or torchrun has started this
/// process, watches on a thread of its own the process that did, through whatever shells and
/// wrappers there are in between. When it has ended, however it did, this process gets a SIGTERM,
/// and ends a few seconds later at the latest, whatever its other threads do. Ranks that were
/// started by hand have nobody to end with. Again it does nothing. Thread-safe.
void end_with_launcher();

}  // namespace bimetal::launch

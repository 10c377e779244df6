#pragma once
// A job whose ranks are all on this machine.

#include "bimetal/cli/local_ranks.h"

namespace bimetal::cli {

/// Runs the job to its end and returns the exit status; nothing of it is left running. Throws Error
/// with the cause if it failed. A request to stop that came before is heeded, too.
int run_local_job(const LocalRanks& ranks, launch::SignalWatch& signals);

}  // namespace bimetal::cli

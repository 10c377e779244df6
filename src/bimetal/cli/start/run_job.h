#pragma once
// Running the ranks of this machine, of a job that is here alone or on several machines.

#include "bimetal/cli/start/local_ranks.h"
#include "bimetal/launch/job_board.h"
#include "bimetal/launch/local/local_launcher.h"
#include "bimetal/net/token.h"

namespace bimetal::cli {

/// Runs a job that is on this machine alone to its end and returns the exit status; nothing of it
/// is left running. Throws Error with the cause if it failed. A request to stop that came before is
/// heeded, too. Without `token` one is made.
int run_local_job(const LocalRanks& ranks, launch::SignalWatch& signals,
                  const net::Token& token = {});

/// Runs this machine's ranks of a job on several. If the job fails, every machine's terminal tells
/// the same cause: the machine where it happened writes it to the board, the others read it there.
/// Exit status, or throws Error, as run_local_job.
int run_shared_job(const launch::LaunchPlan& plan, Work work, launch::JobBoard& board,
                   launch::SignalWatch& signals);

/// Tells the user how a job ended that did not fail, and returns the exit status.
int conclude(const launch::LaunchResult& result);

/// What the first Ctrl-C makes of such work, told when it comes. Work that saves nothing just ends.
void announce_stop(Work work);

}  // namespace bimetal::cli

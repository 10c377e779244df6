#pragma once
// `bimetal launch` on machines whose users let each other in: each starts its own ranks, of the
// script that it has itself.

#include <string>
#include <vector>

#include "bimetal/cli/command.h"
#include "bimetal/cli/start/share.h"
#include "bimetal/cli/start/way_in.h"
#include "bimetal/launch/local/process.h"
#include "bimetal/launch/ssh/host_launcher.h"

namespace bimetal::cli {

/// The first machine, with the first `ranks` of `world_size` ranks. Waits for the others, runs what
/// `plan` says, and stays until all have ended. Errors: those of HostMeeting and
/// launch::run_on_hosts, and what has failed on another machine. Exit status as of run_and_tell().
int share_launch(launch::HostsPlan plan, int ranks, int world_size, const HostOptions& options);

/// Another machine of such a job. Without a command of its own it runs a script of its own folder
/// that is called like the job's, as what arrives from a peer is not executed.
int join_launch(JobToJoin& job, const JoinOptions& options, launch::SignalWatch& signals);

/// `bimetal join` where there is no more of the program than this.
void add_join_launch(CLI::App& app, Action& action);

}  // namespace bimetal::cli

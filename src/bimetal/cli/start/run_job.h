#pragma once
// Runs this machine's ranks of a job, which is here alone or on several machines. This machine may
// have started it.

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

#include "bimetal/cli/rank/rank_request.h"
#include "bimetal/cli/start/share.h"
#include "bimetal/launch/job_board.h"
#include "bimetal/launch/local/local_launcher.h"
#include "bimetal/launch/local/process.h"
#include "bimetal/net/token.h"
#include "bimetal/rendezvous/store.h"

namespace bimetal::cli {

struct LocalRanks {
  RankRequest request;                    ///< of each; its worker or server is filled in
  std::vector<std::string> workers = {};  ///< one rank each; see choose_workers
  /// With parallel.mode = "server": numbers of the parameter servers that run here.
  std::vector<int> servers = {};
};

/// 0 … count-1: as LocalRanks::servers.
std::vector<int> first_servers(int count);

/// A plan without the parts that depend on the rendezvous: first_rank, world_size, store, token.
launch::LaunchPlan plan_of(const LocalRanks& ranks);

/// Makes the launcher of `plan`, made of `ranks`, note each of its processes that fails in the
/// job's store. Ranks that wait to meet it, or look for a parameter server, read it there. Ranks of
/// a mesh get the name of their place in it. If a server's copy is on another machine and shows the
/// job's progress from then on, the user is told. Servers that still run when the job is done,
/// stopped ones for example, are ended. `plan`, `ranks` and `store` must outlive the launch.
void tell_of_failed_ranks(launch::LaunchPlan& plan, const LocalRanks& ranks,
                          rendezvous::Store& store);

/// Runs a job that is on this machine alone to its end and returns the exit status; nothing of it
/// is left running. Throws Error with the cause if it failed. A request to stop that came before is
/// heeded, too. Without `token` one is made.
int run_local_job(const LocalRanks& ranks, launch::SignalWatch& signals,
                  const net::Token& token = {});

/// Runs this machine's ranks of a job on several. If the job fails, every machine's terminal tells
/// the same cause: the machine where it happened writes it to the board, the others read it there.
/// Exit status, or throws Error, as run_local_job.
int run_shared_job(const launch::LaunchPlan& plan, const RankRequest& request,
                   launch::JobBoard& board, launch::SignalWatch& signals);

/// Tells the user how a job ended that did not fail, and returns the exit status.
int conclude(const launch::LaunchResult& result);

/// Tells, when the first Ctrl-C comes, how ranks will end. Work that saves nothing just ends.
void announce_stop(const RankRequest& request);

// The machine on which a job of several was started serves the store, waits for the others, and
// runs the first ranks (local_ranks.cpp).

/// Error(InvalidArgument) for an option that needs others, in a job that is on this machine alone.
void refuse_without_others(const HostOptions& options);

/// Error(InvalidArgument) for any of them in a process that another launcher has started as a rank.
void refuse_in_rank(const HostOptions& options);

/// As run_local_job; rank 0 and those after it are this machine's.
int run_host_job(const LocalRanks& ranks, const HostOptions& options, launch::SignalWatch& signals);

}  // namespace bimetal::cli

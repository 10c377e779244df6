#pragma once
// The processes of a job that a launcher starts on its machine, and word of those that fail.

#include <string>
#include <vector>

#include "bimetal/cli/rank/rank_request.h"
#include "bimetal/launch/local/local_launcher.h"
#include "bimetal/rendezvous/store.h"

namespace bimetal::cli {

struct LocalRanks {
  RankRequest request;               ///< of each; its worker or server is filled in
  std::vector<std::string> workers = {};  ///< one rank each; see choose_workers
  /// With parallel.mode = "server": numbers of the parameter servers that run here.
  std::vector<int> servers = {};
};

/// 0 … count-1: as LocalRanks::servers.
std::vector<int> first_servers(int count);

/// A plan without the parts that depend on the rendezvous: first_rank, world_size, store, token.
launch::LaunchPlan plan_of(const LocalRanks& ranks);

/// Has the launcher of `plan`, made of `ranks`, leave word in the job's store of each process of it
/// that fails, for whoever waits for it there: ranks to meet it, or those who look for a parameter
/// server. Ranks of a mesh get the name of their place in it. Where the copy of a server is on
/// another machine, and shows from then on how the job goes on, the user is told; and servers that
/// still run when the job is done, stopped ones for example, are ended. `plan`,
/// `ranks` and `store` must outlive the launch.
void tell_of_failed_ranks(launch::LaunchPlan& plan, const LocalRanks& ranks,
                          rendezvous::Store& store);

/// This machine's name, for messages on the others.
std::string own_host_name();

}  // namespace bimetal::cli

#pragma once
// The ranks that a launcher starts on its machine.

#include <filesystem>
#include <string>
#include <vector>

#include "bimetal/job/job_config.h"
#include "bimetal/launch/local/local_launcher.h"
#include "bimetal/net/token.h"

namespace bimetal::cli {

struct LocalRanks {
  job::JobConfig job;
  std::vector<std::string> workers;  ///< one rank each; see choose_workers
  /// How `bimetal` is called for each rank, before --worker SPEC.
  std::vector<std::string> rank_command = {"worker"};
  std::filesystem::path report = {};             ///< for rank 0; empty: none
  std::filesystem::path resume = {};             ///< for rank 0; empty: none
  std::string profile = {}, profile_trace = {};  ///< for rank 0, as RankRun has them
  net::Token token = {};                         ///< the job's; empty: one is made for it
  bool summary = true;                           ///< rank 0 prints the closing table
  double stop_after_s = 0;  ///< > 0: seconds of training after which the job ends well
  /// parallel.mode = "server": numbers of the parameter servers that run here.
  std::vector<int> servers = {};
  bool joined = false;              ///< of a job whose server 0 is elsewhere
  std::string server_address = {};  ///< where those servers listen; empty: as the job's store does
};

/// The workers of the command line, else those of the job, else one that chooses its device.
/// Error(InvalidArgument) for a spec that makes no sense.
std::vector<std::string> choose_workers(const std::vector<std::string>& from_command_line,
                                        const job::JobConfig& job);

/// The same for a machine that may have parameter servers alone: "none" stands for no worker.
std::vector<std::string> choose_workers_or_none(const std::vector<std::string>& from_command_line,
                                                const job::JobConfig& job);

/// 0 … count-1: as LocalRanks::servers.
std::vector<int> first_servers(int count);

/// A plan without the parts that depend on the rendezvous: first_rank, world_size, store, token.
launch::LaunchPlan plan_of(const LocalRanks& ranks);

/// Tells the user how a job ended that did not fail, and returns the exit status.
int conclude(const launch::LaunchResult& result);

/// "stopping …": what a launcher says at the first Ctrl-C.
void announce_stop();

/// A failed job's message with where to go on from: what main prints.
Error with_resume_hint(const launch::JobFailed& failure);

}  // namespace bimetal::cli

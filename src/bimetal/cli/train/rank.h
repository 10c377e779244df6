#pragma once
// One rank of a job, from joining to leaving. Ranks are started by `train` and `join` as the hidden
// subcommand `worker`, or by another launcher (torchrun…) as `train` with RANK set.

#include <filesystem>
#include <string>

#include "bimetal/cli/command.h"
#include "bimetal/job/job_config.h"
#include "bimetal/job/worker_spec.h"
#include "bimetal/launch/rank_environment.h"

namespace bimetal::cli {

struct RankRun {
  launch::RankEnvironment env;
  job::JobConfig job;
  job::WorkerSpec worker;
  std::filesystem::path report;             ///< rank 0 writes it; empty: none
  std::filesystem::path resume;             ///< rank 0 reads it; empty: from the beginning
  std::string profile, profile_trace = {};  ///< rank 0's: profile_output.h; empty: none
  bool summary = true;                      ///< rank 0 prints the closing table
  double stop_after_s = 0;  ///< > 0: seconds of training after which the job ends well
  bool joined = false;      ///< parallel.mode = "server": came from another machine, later
};

/// Runs the rank to its end and returns its exit status. Errors go to the launcher if there is one,
/// and are thrown otherwise.
int run_rank(const RankRun& run);

/// The hidden subcommand.
void add_worker(CLI::App& app, Action& action);

}  // namespace bimetal::cli

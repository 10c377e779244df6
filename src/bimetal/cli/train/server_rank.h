#pragma once
// The processes of a job with parallel.mode = "server": a worker, and the hidden subcommand
// `server`. docs/parameter_server.md.

#include "bimetal/cli/command.h"
#include "bimetal/cli/train/rank.h"

namespace bimetal::cli {

/// As run_rank.
int run_worker_rank(const RankRun& run);

/// The hidden subcommand.
void add_server(CLI::App& app, Action& action);

}  // namespace bimetal::cli

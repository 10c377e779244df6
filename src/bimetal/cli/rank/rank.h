#pragma once
// One process of a job, from joining to leaving. `train`, `plan`, `join` and their like start it as
// the hidden subcommand `rank`; another launcher (torchrun…) starts `train` itself with RANK set.

#include "bimetal/cli/rank/rank_request.h"
#include "bimetal/launch/local/status_pipe.h"
#include "bimetal/launch/rank_environment.h"

namespace bimetal::cli {

/// Does what `request` asks and returns the exit status. Errors go to the launcher if there is one,
/// and are thrown otherwise.
int run_rank(const launch::RankEnvironment& env, const RankRequest& request);

// Its kinds of work. Each returns the exit status, and throws.

/// Training; by way of parameter servers where the job has them.
int train_as_rank(const launch::RankEnvironment& env, const RankRequest& request,
                  launch::StatusReporter& status);
int train_with_servers(const launch::RankEnvironment& env, const RankRequest& request);
int serve_parameters(const launch::RankEnvironment& env, const RankRequest& request,
                     launch::StatusReporter& status);
/// Rank 0 shows the plan.
int plan_as_rank(const launch::RankEnvironment& env, const RankRequest& request);
/// Rank 0 reads the checkpoint and shows the figures.
int evaluate_as_rank(const launch::RankEnvironment& env, const RankRequest& request);
/// Rank 0 reads what has been trained and writes the text.
int generate_as_rank(const launch::RankEnvironment& env, const RankRequest& request);

}  // namespace bimetal::cli

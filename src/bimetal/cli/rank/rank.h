#pragma once
// One process of a job, from joining to leaving. `train`, `plan`, `join` and their like start it as
// the hidden subcommand `rank`; another launcher (torchrun…) starts `train` itself with RANK set.

#include <chrono>
#include <exception>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "bimetal/base/deadline.h"
#include "bimetal/cli/rank/rank_request.h"
#include "bimetal/comm/group.h"
#include "bimetal/job/job_config.h"
#include "bimetal/launch/local/status_pipe.h"
#include "bimetal/launch/meet.h"
#include "bimetal/launch/rank_environment.h"

namespace bimetal::cli {

/// As torchrun runs it: `from_command_line`, else the job's, are this machine's workers, and the
/// rank takes the one of its local number (or the best device if none is listed).
std::string worker_of_rank(const launch::RankEnvironment& env,
                           const std::vector<std::string>& from_command_line,
                           const job::JobConfig& job);

/// Does `work` and returns its exit status. Errors go to the launcher if there is one, and are
/// thrown otherwise.
int run_rank_process(const std::function<int(launch::StatusReporter&)>& work);

/// This process's place in the job, if something has started it as a rank: see
/// launch/rank_environment.h.
std::optional<launch::RankEnvironment> find_rank(const job::JobConfig& job);

/// The job's [fabric] transport. Error(InvalidArgument) for a name that no transport has.
comm::Transport transport_of(const job::JobConfig& job);

/// Whether find_rank() may find that. MPI is not asked.
bool may_be_rank(const job::JobConfig& job);

/// The group of all ranks, with the job's timeouts and transport and the token of the environment.
/// Collective.
comm::Group join_group(const launch::RankEnvironment& env, const job::JobConfig& job);

/// Ends `group` on all of its ranks with the reason: an error on one rank alone must not leave the
/// others waiting.
void end_for_all(comm::Group group, const std::exception& failure);

/// The result of `work`, which all ranks of `group` do together.
template <typename Work>
auto in_company(const comm::Group& group, const Work& work) {
  try {
    return work();
  } catch (const std::exception& failure) {
    end_for_all(group, failure);
    throw;
  }
}

/// How those who are left when a rank is lost meet again: within parallel.timeout_s, by which each
/// of them has seen the loss.
launch::JoinOptions rejoin_options(const job::JobConfig& job);

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
/// Rank 0 reads the trained model and writes the text.
int generate_as_rank(const launch::RankEnvironment& env, const RankRequest& request);

}  // namespace bimetal::cli

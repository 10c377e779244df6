#include <fmt/format.h>

#include <chrono>

#include "bimetal/base/error.h"
#include "bimetal/base/typed_text.h"
#include "bimetal/cli/job_options.h"
#include "bimetal/cli/rank/rank.h"
#include "bimetal/cli/terminal.h"
#include "bimetal/launch/local/status_pipe.h"
#include "bimetal/launch/meet.h"
#include "bimetal/launch/rank_environment.h"

namespace bimetal::cli {

comm::Transport transport_of(const job::JobConfig& job) {
  return comm::transport_of(job.fabric.transport, "[fabric] transport");
}

std::string worker_of_rank(const launch::RankEnvironment& env,
                           const std::vector<std::string>& from_command_line,
                           const job::JobConfig& job) {
  const auto workers = choose_workers(from_command_line, job);
  const bool by_default = from_command_line.empty() && job.cluster.workers.empty();
  if (!by_default && env.local_rank >= static_cast<int>(workers.size())) {
    throw Error(
        ErrorCode::InvalidArgument,
        fmt::format("LOCAL_RANK={}, but only {} listed for this machine (by "
                    "--worker or cluster.workers); list one for each local rank, or none",
                    env.local_rank, counted(std::ssize(workers), "worker is", "workers are")),
        env.rank);
  }
  return workers[by_default ? 0 : env.local_rank];
}

int run_rank_process(const std::function<int(launch::StatusReporter&)>& work) {
  launch::StatusReporter status;
  try {
    launch::watch_lifeline(exit_status(ErrorCode::Aborted));  // a thread, which may be one too many
    return work(status);
  } catch (const std::exception& failure) {
    if (!status.connected()) throw;
    const Error error = as_error(failure);
    status.failed(error);
    return exit_status(error.code());
  }
}

std::optional<launch::RankEnvironment> find_rank(const job::JobConfig& job) {
  return launch::find_rank(transport_of(job),
                           Deadline::after(milliseconds_of(job.cluster.join_timeout_s)));
}

bool may_be_rank(const job::JobConfig& job) {
  return launch::looks_like_rank() ||
         comm::transport_for(transport_of(job)) == comm::Transport::mpi;
}

}  // namespace bimetal::cli

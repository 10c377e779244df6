#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <optional>

#include "bimetal/base/deadline.h"
#include "bimetal/base/quantity.h"
#include "bimetal/base/release.h"
#include "bimetal/cli/command.h"
#include "bimetal/cli/job_options.h"
#include "bimetal/cli/start/host_meeting.h"
#include "bimetal/cli/start/run_job.h"
#include "bimetal/cli/terminal.h"
#include "bimetal/job/job_bindings.h"
#include "bimetal/net/endpoint.h"
#include "bimetal/rendezvous/store.h"

namespace bimetal::cli {
namespace {

/// As people know the job: checkpoints are in runs/ and the job file's name unless it says
/// otherwise.
std::string name_of(const job::JobConfig& job) {
  const auto folder = std::filesystem::path(job.checkpoint.dir).filename().string();
  return folder.empty() ? job.model.name : folder;
}

/// The host's part in the rendezvous.
class Host {
 public:
  Host(const LocalRanks& ranks, const HostOptions& options, launch::SignalWatch& signals)
      : ranks_(ranks),
        signals_(signals),
        meeting_(options, options.all_workers(own_workers()), signals,
                 [this](const std::string& text) { say(text); }) {}

  ~Host() { wait_until_others_left(); }

  int run() {
    const auto servers_here = static_cast<int>(ranks_.servers.size());
    meeting_.offer({std::string(release()), to_text(for_other_machines(ranks_.request)),
                    meeting_.world_size(), servers_here},
                   own_workers(), name_of(ranks_.request.job));
    const bool with_servers = has_servers(ranks_.request);
    if (with_servers) {
      const int elsewhere = job::server_processes(ranks_.request.job.servers) - servers_here;
      if (elsewhere > 0) {
        say(fmt::format("waiting for {} from elsewhere; {}", counted(elsewhere, "parameter server"),
                        meeting_.how_to_join(" --server")));
      }
      say(fmt::format("workers may come and go: {}", meeting_.how_to_join()));
      say(fmt::format("ask the newest weights, once it trains: bimetal predict {} IMAGES",
                      net::to_string(meeting_.address())));
    } else if (!meeting_.wait_for_workers(ranks_.request.job.cluster.join_timeout_s,
                                          "cluster.join_timeout_s")) {
      return conclude({.interrupted = true});
    }
    board().start();
    if (ranks_.request.elastic) {
      say(fmt::format("workers may join later, too: {}", meeting_.how_to_join()));
    }
    auto plan = plan_of(ranks_);
    plan.world_size = with_servers ? static_cast<int>(plan.ranks.size()) : meeting_.world_size();
    plan.only_these = !with_servers;
    plan.store = meeting_.address();
    plan.token = meeting_.token();
    tell_of_failed_ranks(plan, ranks_, meeting_.store());
    return run_shared_job(plan, ranks_.request, board(), signals_);
  }

 private:
  int own_workers() const { return static_cast<int>(ranks_.workers.size()); }
  launch::JobBoard& board() { return meeting_.board(); }

  /// A plan's standard output is the plan.
  void say(const std::string& text) {
    if (ranks_.request.work == Work::train) {
      terminal_.print(text);
    } else {
      print_to_errors(text);
    }
  }

  /// Others may still want to read why the job failed, or are to meet where a rank is lost.
  void wait_until_others_left() noexcept {
    const auto& job = ranks_.request.job;
    std::chrono::milliseconds patience = std::chrono::seconds(5);
    if (job.zero.copies > 1) patience = std::max(patience, milliseconds_of(job.parallel.timeout_s));
    meeting_.wait_until_others_left(patience, job.zero.copies > 1);
  }

  const LocalRanks& ranks_;
  launch::SignalWatch& signals_;
  Terminal terminal_;
  HostMeeting meeting_;
};

}  // namespace

void refuse_without_others(const HostOptions& options) {
  if (options.expects_others() || options.world_size == 0) return;
  throw Error(ErrorCode::InvalidArgument, "--world-size goes with --share or --listen");
}

void refuse_in_rank(const HostOptions& options) {
  if (options.expects_others()) {
    throw Error(
        ErrorCode::InvalidArgument,
        "--share and --listen start a job, but RANK is set (or mpirun or srun is at work): this "
        "process is one rank of a job that another launcher has started; unset RANK, or "
        "leave them out");
  }
  if (!options.token_file.empty()) {
    throw Error(
        ErrorCode::InvalidArgument,
        "--token-file is for the process that starts a job, and this one is a rank of a job "
        "that another launcher has started: set BIMETAL_TOKEN_FILE for all of its ranks");
  }
}

int run_host_job(const LocalRanks& ranks, const HostOptions& options,
                 launch::SignalWatch& signals) {
  if (!has_servers(ranks.request)) {
    world_size_of(options, static_cast<int>(ranks.workers.size()));
  } else if (options.share) {
    encrypt_unless_told();
  }
  return Host(ranks, options, signals).run();
}

}  // namespace bimetal::cli

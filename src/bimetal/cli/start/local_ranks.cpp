#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <numeric>
#include <optional>

#include "bimetal/base/deadline.h"
#include "bimetal/base/error.h"
#include "bimetal/base/release.h"
#include "bimetal/base/typed_text.h"
#include "bimetal/cli/command.h"
#include "bimetal/cli/job_options.h"
#include "bimetal/cli/python_command.h"
#include "bimetal/cli/start/host_meeting.h"
#include "bimetal/cli/start/run_job.h"
#include "bimetal/cli/terminal.h"
#include "bimetal/job/job_keys.h"
#include "bimetal/launch/local/process.h"
#include "bimetal/launch/meet.h"
#include "bimetal/net/endpoint.h"
#include "bimetal/parallel/server/directory/directory.h"
#include "bimetal/rendezvous/bootstrap.h"
#include "bimetal/rendezvous/store.h"
#include "bimetal/train/pipeline/mesh_shape.h"

namespace bimetal::cli {
namespace {

constexpr const char* kFlightVariable = "BIMETAL_FLIGHT_RECORDER";

constexpr std::chrono::seconds kToLeaveWord{5};

launch::LocalRank process_of(const RankRequest& request, const std::string& name) {
  return {.name = name,
          .command = {program_of_ranks().string(), "rank", name},
          .environment = {{kRequestVariable, to_text(request)}}};
}

void add_servers(const LocalRanks& ranks, launch::LaunchPlan& plan) {
  const auto& config = ranks.request.job.servers;
  const int workers = static_cast<int>(plan.ranks.size());
  const int shards = static_cast<int>(config.weights.size());
  const int servers = job::server_processes(config);
  auto request = ranks.request;
  request.work = Work::serve_parameters;
  for (const int server : ranks.servers) {
    request.server = server;
    plan.ranks.push_back(process_of(request, fmt::format("parameter server {}", server)));
    if (servers == shards) continue;
    const auto copy = std::ranges::find(ranks.servers, (server + shards) % servers);
    plan.ranks.back().copy = copy == ranks.servers.end()
                                 ? launch::kCopyElsewhere
                                 : workers + static_cast<int>(copy - ranks.servers.begin());
  }
}

/// A rank of a mesh is told of by its place in it. One that does not fit the ranks they refuse.
void name_by_place(launch::LaunchPlan& plan, const job::MeshConfig& mesh) {
  if (is_open(mesh)) return;
  if (mesh.stages * mesh.tensor == 1) return;
  parallel::MeshShape shape;
  try {
    shape = train::shape_of(mesh, plan.world_size);
  } catch (const Error&) {
    return;
  }
  for (std::size_t i = 0; i < plan.ranks.size(); ++i) {
    auto& name = plan.ranks[i].name;
    name = fmt::format("{}, {}", name_of(shape, plan.first_rank + static_cast<int>(i)), name);
  }
}

void withdraw_failed_servers(launch::LaunchPlan& plan, const LocalRanks& ranks,
                             rendezvous::Store& store) {
  const auto first = static_cast<int>(ranks.workers.size());  // plan_of: behind the workers
  plan.on_failure = [&store, &plan, &ranks, first](int failed, const Error& how) {
    if (failed < first) return;
    const int server = ranks.servers[static_cast<std::size_t>(failed - first)];
    if (plan.ranks[static_cast<std::size_t>(failed)].copy == launch::kCopyElsewhere) {
      print_to_errors(
          fmt::format("bimetal: parameter server {} has failed; the job goes on with its "
                      "copy on another machine{}",
                      server, server == 0 ? ", which shows its progress" : ""));
    }
    parallel::server::note_lost_server(store, server, how);
  };
  plan.over = [&store, gone = false]() mutable {
    if (gone) return false;
    try {
      return parallel::server::has_finished(store);
    } catch (const Error&) {
      gone = true;
      return false;
    }
  };
}

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

std::vector<int> first_servers(int count) {
  std::vector<int> servers(static_cast<std::size_t>(count));
  std::iota(servers.begin(), servers.end(), 0);
  return servers;
}

launch::LaunchPlan plan_of(const LocalRanks& ranks) {
  launch::LaunchPlan plan;
  auto request = ranks.request;
  const auto& job = request.job;
  // Told once, and not by every rank.
  if (!job.model.python.empty()) launch::find_program(launch::python_program());
  const bool with_servers = has_servers(request);
  for (const auto& worker : ranks.workers) {
    request.worker = worker;
    plan.ranks.push_back(process_of(request, worker));
    plan.ranks.back().expendable = with_servers || request.elastic;
  }
  if (with_servers) {
    add_servers(ranks, plan);
    // A job that is resumed at its end may still wait for servers when its workers have ended.
    plan.grace_after_finish += milliseconds_of(job.cluster.join_timeout_s);
  }
  if (job.zero.copies > 1) {
    // A rank that computes sees a loss when it next waits for others.
    plan.grace_after_failure =
        std::max(plan.grace_after_failure, milliseconds_of(job.parallel.timeout_s));
    // They meet, even out and save; each of these may take a time-out, and the disk be slow.
    plan.longest_rescue = std::max(plan.longest_rescue, 10 * plan.grace_after_failure);
  }
  // Beside the report, unless the user has said where.
  if (!request.report.empty() && std::getenv(kFlightVariable) == nullptr) {
    const std::filesystem::path report = request.report;
    const auto dump = report.stem().string() + "_flight.json";
    plan.environment.emplace_back(kFlightVariable, (report.parent_path() / dump).string());
  }
  return plan;
}

void tell_of_failed_ranks(launch::LaunchPlan& plan, const LocalRanks& ranks,
                          rendezvous::Store& store) {
  if (!ranks.servers.empty()) {
    withdraw_failed_servers(plan, ranks, store);
    return;
  }
  name_by_place(plan, ranks.request.job.mesh);
  plan.on_failure = [&store, first = plan.first_rank](int index, const Error& how) {
    // To the others any failure of this rank is a lost peer.
    const Error note(
        ErrorCode::PeerLost,
        fmt::format("on {}, before all ranks had met: {}", own_host_name(), how.what()),
        first + index);
    try {
      rendezvous::note_failure(store, rendezvous::fault_key(), note, Deadline::after(kToLeaveWord));
    } catch (const Error&) {
      // The store is gone, and with it anybody who would look.
    }
  };
}

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

#include <fmt/format.h>

#include <chrono>
#include <filesystem>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "bimetal/base/deadline.h"
#include "bimetal/base/error.h"
#include "bimetal/base/release.h"
#include "bimetal/base/typed_text.h"
#include "bimetal/cli/command.h"
#include "bimetal/cli/job_options.h"
#include "bimetal/cli/start/run_job.h"
#include "bimetal/cli/start/way_in.h"
#include "bimetal/cli/terminal.h"
#include "bimetal/job/job_keys.h"
#include "bimetal/net/endpoint.h"
#include "bimetal/parallel/server/directory/directory.h"
#include "bimetal/rendezvous/store.h"

namespace bimetal::cli {
namespace {

constexpr const char* kJoinExamples = R"(Examples:
  bimetal join                                                         (shows jobs of train --share)
  bimetal join mac.local                                                            (train --share)
  bimetal join mac.local -n 2               (launch --share train.py: runs train.py of this folder)
  bimetal join 192.168.1.5:29400 --token-file token
  bimetal join mac.local:29400 --token-file token --worker cuda:0 --worker cuda:1
  bimetal join mac.local:29400 --token-file token --server                          (no worker)
  bimetal join mac.local:29400 --token-file token --server --worker cpu:threads=3   (both))";

struct JoinArguments : JoinOptions {
  std::string data_path, resume;
  std::vector<std::string> workers;
  bool server = false;
};

/// The ranks' request, adapted to this machine: paths may differ here.
RankRequest request_here(const launch::JobOffer& offer, const JoinArguments& arguments) {
  auto request = parse_request(offer.request);
  if (!arguments.data_path.empty()) request.job.data.path = arguments.data_path;
  request.joined = true;
  return request;
}

/// A folder that was named here and is not there is a mistake, and none that is mended by sending
/// data from elsewhere.
void require_data_path(const std::string& path) {
  if (path.empty() || is_url(path) || std::filesystem::is_directory(path)) return;
  throw Error(ErrorCode::InvalidArgument,
              fmt::format("--data-path '{}' is no folder; leave it out to be sent the data by the "
                          "job's first machine",
                          path));
}

/// One of the job's parameter servers is to run here.
void take_server(LocalRanks& ranks, launch::JobBoard& board, const launch::JobOffer& offer,
                 const net::Endpoint& host, const JoinArguments& arguments) {
  if (!has_servers(ranks.request)) {
    throw Error(ErrorCode::InvalidArgument,
                "--server: this job has none (parallel.mode = \"server\")");
  }
  ranks.servers = {board.claim_server(offer, job::server_processes(ranks.request.job.servers))};
  ranks.request.listen = net::address_towards(host);
  ranks.request.resume = arguments.resume;
}

std::string as_what(const LocalRanks& ranks) {
  if (ranks.servers.empty()) return "";
  return fmt::format(" as parameter server {}{}", ranks.servers[0],
                     ranks.workers.empty() ? "" : " and with workers");
}

constexpr std::chrono::milliseconds kLookForItEvery{200};
/// With kLookForItEvery less than the second after which a guest is to be gone.
constexpr std::chrono::milliseconds kToEndThen{700};

/// Whether a worker says no more than that it found nobody.
bool says_it_is_alone(const Error& error) {
  return error.code() == ErrorCode::PeerLost || error.code() == ErrorCode::Timeout ||
         error.code() == ErrorCode::Aborted;
}

/// A machine that has given workers to a job of parameter servers looks whether that job is still
/// there: it may end while a worker here is only starting, or meets nobody any more. Use from one
/// thread.
class GuestWatch {
 public:
  /// `host`: as the user has written it. `copies`: the job outlives its first machine. `store` must
  /// outlive it.
  GuestWatch(rendezvous::Store& store, std::string host, bool copies)
      : store_(store), host_(std::move(host)), copies_(copies) {}

  /// Whether there is nothing more to do here: the job is done, or its first machine is gone.
  bool over();

  /// Runs the workers, which have a second to end once the job is over, says that it is, and gives
  /// the exit status. Errors: launch::JobFailed; PeerLost where the job's machine is gone, and the
  /// workers' errors follow from that.
  int run(launch::LaunchPlan plan, launch::SignalWatch& signals);

 private:
  enum class Job { there, ended, gone };

  /// `seen_here`: a worker's words on it; empty if there are none.
  Error gone_error(const std::string& seen_here) const;

  rendezvous::Store& store_;
  std::string host_;
  bool copies_;
  Job job_ = Job::there;
};

bool GuestWatch::over() {
  if (job_ != Job::there) return job_ == Job::ended || !copies_;
  try {
    if (parallel::server::has_ended(store_)) job_ = Job::ended;
  } catch (const Error& error) {
    if (error.code() != ErrorCode::Timeout) job_ = Job::gone;  // a slow answer is one
  }
  return job_ == Job::ended || (job_ == Job::gone && !copies_);
}

Error GuestWatch::gone_error(const std::string& seen_here) const {
  return {ErrorCode::PeerLost,
          fmt::format("the job of {} has ended, or that machine is gone: nothing answers there any "
                      "more{}{}",
                      host_, seen_here.empty() ? "" : "; ", seen_here)};
}

int GuestWatch::run(launch::LaunchPlan plan, launch::SignalWatch& signals) {
  plan.over = [this] { return over(); };
  plan.ask_whether_over_every = kLookForItEvery;
  plan.grace_after_over = kToEndThen;
  launch::LaunchResult result;
  try {
    result = launch::run_ranks(plan, signals, [] { announce_stop({}); });
  } catch (const launch::JobFailed& failure) {
    if (!says_it_is_alone(failure) || !over()) throw;
    if (job_ == Job::gone) throw gone_error(failure.what());
  }
  if (result.interrupted) return conclude(result);
  if (job_ == Job::gone && !result.left_behind.empty()) throw gone_error({});
  Terminal().print(fmt::format("the job of {} has ended", host_));
  return kSuccess;
}

/// Options that mean nothing for the job that was found are a mistake.
void require_fit(const JoinArguments& arguments, bool launched) {
  const bool of_launch = arguments.ranks || !arguments.command.empty();
  const bool of_job_file =
      !arguments.workers.empty() || !arguments.data_path.empty() || arguments.server;
  if (launched && of_job_file) {
    throw Error(ErrorCode::InvalidArgument,
                fmt::format("{} runs a script by `bimetal launch`: -n N says how many ranks come "
                            "from here; leave --worker, --data-path and --server out",
                            arguments.host));
  }
  if (!launched && of_launch) {
    throw Error(ErrorCode::InvalidArgument,
                fmt::format("the job of {} is trained by a job file: --worker, repeated, says what "
                            "comes from here; leave -n and COMMAND out",
                            arguments.host));
  }
}

int join_command(JoinArguments arguments) {
  require_data_path(arguments.data_path);
  // A machine that gives a parameter server gives workers if that is said, too.
  const auto workers = arguments.server && arguments.workers.empty()
                           ? std::vector<std::string>()
                           : choose_workers(arguments.workers, {});
  Terminal terminal;
  JobToJoin found(arguments, terminal);
  auto& board = found.board;
  // Not before: while it looks for the job it has nothing to give back, and Ctrl-C may just end it.
  launch::SignalWatch signals;
  require_fit(arguments, found.is_launch());
  if (found.is_launch()) return join_launch(found, arguments, signals);

  LocalRanks ranks{request_here(found.offer, arguments), workers};
  const auto& job = ranks.request.job;
  const auto work = ranks.request.work;
  if (arguments.server) take_server(ranks, board, found.offer, found.way.store, arguments);
  const bool comes_later = work == Work::train && ranks.request.elastic && board.started();
  if (comes_later) ranks.request.door = net::to_string(found.way.store);
  auto plan = plan_of(ranks);
  plan.world_size = found.offer.world_size;
  plan.store = found.way.store;
  plan.token = found.way.token;
  if (has_servers(ranks.request)) {
    plan.world_size = static_cast<int>(plan.ranks.size());
    terminal.print(
        fmt::format("joining {}{}; the job's progress is shown there", found.name, as_what(ranks)));
    if (ranks.servers.empty()) {
      return GuestWatch(found.store, found.name, job.servers.replicas > 1).run(plan, signals);
    }
    const Leaving leaving(board);
    tell_of_failed_ranks(plan, ranks, found.store);
    return run_shared_job(plan, ranks.request, board, signals);
  }
  if (comes_later) {
    plan.first_rank = board.claim_later(static_cast<int>(workers.size()));
    plan.world_size = plan.first_rank + static_cast<int>(workers.size());
    const Leaving leaving(board);
    terminal.print(fmt::format("joining {}, which trains already", found.name));
    return run_shared_job(plan, ranks.request, board, signals);
  }
  plan.first_rank = board.claim(static_cast<int>(workers.size()), found.offer.world_size);
  const Leaving leaving(board);
  terminal.print(fmt::format("joined {} as rank {} of {}{}", found.name, plan.first_rank,
                             found.offer.world_size,
                             work == Work::plan ? "; the plan is shown there" : ""));
  if (!wait_for_start(found, signals, job.cluster.join_timeout_s)) {
    return conclude({.interrupted = true});
  }
  tell_of_failed_ranks(plan, ranks, found.store);
  return run_shared_job(plan, ranks.request, board, signals);
}

}  // namespace

void add_join(CLI::App& app, Action& action) {
  auto arguments = std::make_shared<JoinArguments>();
  auto* command = app.add_subcommand("join", "Join a job that waits on another machine");
  add_join_options(*command, *arguments);
  add_workers(*command, arguments->workers,
              "A worker of this machine; may be repeated (default: one on the best device; with "
              "--server none)");
  command
      ->add_option("--data-path", arguments->data_path,
                   "Folder or URL of the data for this machine, where it differs from the job's")
      ->type_name("DIR");
  auto* server =
      command->add_flag("--server", arguments->server,
                        "Run one of the job's parameter servers here, which its first machine "
                        "leaves to others (train --servers-here)");
  command
      ->add_option("--resume", arguments->resume,
                   "The checkpoint that the job goes on from, as this machine's server sees it")
      ->type_name("DIR")
      ->needs(server);
  command->footer(kJoinExamples);
  command->callback(
      [arguments, &action] { action = [arguments] { return join_command(*arguments); }; });
}

}  // namespace bimetal::cli

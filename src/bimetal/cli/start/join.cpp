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
#include "bimetal/base/url.h"
#include "bimetal/cli/command.h"
#include "bimetal/cli/exit_status.h"
#include "bimetal/cli/job_options.h"
#include "bimetal/cli/start/run_job.h"
#include "bimetal/cli/start/share.h"
#include "bimetal/cli/terminal.h"
#include "bimetal/net/endpoint.h"
#include "bimetal/parallel/server/directory/directory.h"
#include "bimetal/rendezvous/store.h"
#include "bimetal/train/server/server_job.h"

namespace bimetal::cli {
namespace {

constexpr const char* kJoinExamples = R"(Examples:
  bimetal join                                                         (shows jobs of train --share)
  bimetal join mac.local                                                            (train --share)
  bimetal join 192.168.1.5:29400 --token-file token
  bimetal join mac.local:29400 --token-file token --worker cuda:0 --worker cuda:1
  bimetal join mac.local:29400 --token-file token --server                          (no worker)
  bimetal join mac.local:29400 --token-file token --server --worker cpu:threads=3   (both))";

struct JoinArguments {
  std::string host, token_file, data_path, resume;
  std::vector<std::string> workers;
  double join_timeout_s = 60;
  bool server = false;
};

Deadline deadline_after(double seconds) {
  return Deadline::after(milliseconds_of(seconds));
}

void require_same_version(const launch::JobOffer& offer, const std::string& host) {
  if (offer.version == release()) return;
  throw Error(
      ErrorCode::ProtocolMismatch,
      fmt::format("{} runs Bimetal {} and this machine {}; install the same version on both", host,
                  offer.version, release()));
}

/// What ranks are to do, as this machine does it: paths may differ here.
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

/// Waits for the host's sign. False if the user gave up.
bool wait_for_start(launch::JobBoard& board, launch::SignalWatch& signals,
                    const JoinArguments& arguments, double timeout_s) {
  const auto deadline = deadline_after(timeout_s);
  while (!board.started()) {
    if (signals.stop_requests() > 0) {
      board.withdraw(own_host_name());
      return false;
    }
    if (board.withdrawn()) {
      throw Error(ErrorCode::Aborted,
                  fmt::format("{} gave up before the job began", arguments.host));
    }
    if (deadline.expired()) {
      board.withdraw(own_host_name());
      throw Error(ErrorCode::Timeout,
                  fmt::format("the job of {} did not begin within {:g} s: workers are missing",
                              arguments.host, timeout_s));
    }
    signals.pause(std::chrono::milliseconds(100));
  }
  return true;
}

/// Says goodbye to the host, however the job ends.
class Leaving {
 public:
  explicit Leaving(launch::JobBoard& board) : board_(board) {}
  ~Leaving() {
    try {
      board_.leave();
    } catch (const std::exception&) {
      // The host is gone already.
    }
  }

 private:
  launch::JobBoard& board_;
};

/// One of the job's parameter servers is to run here.
void take_server(LocalRanks& ranks, launch::JobBoard& board, const launch::JobOffer& offer,
                 const net::Endpoint& host, const JoinArguments& arguments) {
  if (!has_servers(ranks.request)) {
    throw Error(ErrorCode::InvalidArgument,
                "--server: this job has none (parallel.mode = \"server\")");
  }
  ranks.servers = {board.claim_server(offer, train::server_processes(ranks.request.job.servers))};
  ranks.request.listen = net::address_towards(host);
  ranks.request.resume = arguments.resume;
}

std::string as_what(const LocalRanks& ranks) {
  if (ranks.servers.empty()) return "";
  return fmt::format(" as parameter server {}{}", ranks.servers[0],
                     ranks.workers.empty() ? "" : " and with workers");
}

/// A job that is not there may be one that is there no more: who waits for it is told so early.
std::unique_ptr<rendezvous::Store> find_job(const net::Endpoint& host, const net::Token& token,
                                            Deadline deadline, const std::string& name,
                                            Terminal& terminal) {
  constexpr std::chrono::seconds kUntilTold{2};
  if (deadline.remaining() > kUntilTold) {
    try {
      return rendezvous::connect_store(host, token, Deadline::after(kUntilTold));
    } catch (const Error& error) {
      if (error.code() != ErrorCode::Timeout) throw;
      terminal.print(
          fmt::format("nobody answers at {} yet: the job has not begun, or has ended", name));
    }
  }
  try {
    return rendezvous::connect_store(host, token, deadline);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::Timeout) throw;
    throw Error(error.code(), fmt::format("{}; or the job of {} has ended", error.what(), name));
  }
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
  /// the exit status. Errors: launch::JobFailed; PeerLost where the job's machine is gone, and what
  /// was wrong with the workers follows from that.
  int run(launch::LaunchPlan plan, launch::SignalWatch& signals);

 private:
  enum class Job { there, ended, gone };

  /// `seen_here`: what a worker says of it; empty if none does.
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

/// Where the job's store is, and how one is let in there.
struct WayIn {
  net::Endpoint store;
  net::Token token;
};

/// Without a token the job's machine is asked to let this one in. Without a machine, `arguments`
/// gets the one that the user chooses.
WayIn find_way_in(JoinArguments& arguments, Deadline deadline, Terminal& terminal) {
  std::vector<net::Endpoint> places;
  if (arguments.host.empty()) {
    const auto job = choose_job(terminal);
    arguments.host = job.machine;
    for (const auto& address : job.addresses) places.push_back({address, job.port});
  } else {
    places.push_back(parse_host(arguments.host));
    terminal.print(fmt::format("connecting to {}", arguments.host));
    const auto token = read_token(arguments.token_file);
    if (!token.empty()) return {places.front(), token};
  }
  const auto admission = ask_to_be_let_in(places, arguments.host, deadline);
  if (!admission) return {places.front(), {}};
  encrypt_unless_told(admission->grant.encrypted);
  terminal.print(fmt::format("{} lets this machine in{}", admission->host,
                             admission->remembered ? "" : ": the two remember each other"));
  return {admission->store, admission->grant.token};
}

int join_command(JoinArguments arguments) {
  require_data_path(arguments.data_path);
  // A machine that gives a parameter server gives workers if that is said, too.
  const auto workers = arguments.server && arguments.workers.empty()
                           ? std::vector<std::string>()
                           : choose_workers(arguments.workers, {});
  Terminal terminal;
  const auto deadline = deadline_after(arguments.join_timeout_s);
  const auto [host, token] = find_way_in(arguments, deadline, terminal);
  launch::JobStore store(find_job(host, token, deadline, arguments.host, terminal));
  launch::JobBoard board(store);
  const auto offer = board.read_offer(deadline);
  // Not before: while it looks for the job it has nothing to give back, and Ctrl-C may just end it.
  launch::SignalWatch signals;
  require_same_version(offer, arguments.host);

  LocalRanks ranks{request_here(offer, arguments), workers};
  const auto& job = ranks.request.job;
  const auto work = ranks.request.work;
  if (arguments.server) take_server(ranks, board, offer, host, arguments);
  const bool comes_later = work == Work::train && ranks.request.elastic && board.started();
  if (comes_later) ranks.request.door = net::to_string(host);
  auto plan = plan_of(ranks);
  plan.world_size = offer.world_size;
  plan.store = host;
  plan.token = token;
  if (has_servers(ranks.request)) {
    plan.world_size = static_cast<int>(plan.ranks.size());
    terminal.print(fmt::format("joining {}{}; the job's progress is shown there", arguments.host,
                               as_what(ranks)));
    if (ranks.servers.empty()) {
      return GuestWatch(store, arguments.host, job.servers.replicas > 1).run(plan, signals);
    }
    const Leaving leaving(board);
    tell_of_failed_ranks(plan, ranks, store);
    return run_shared_job(plan, ranks.request, board, signals);
  }
  if (comes_later) {
    plan.first_rank = board.claim_later(static_cast<int>(workers.size()));
    plan.world_size = plan.first_rank + static_cast<int>(workers.size());
    const Leaving leaving(board);
    terminal.print(fmt::format("joining {}, which trains already", arguments.host));
    return run_shared_job(plan, ranks.request, board, signals);
  }
  plan.first_rank = board.claim(static_cast<int>(workers.size()), offer.world_size);
  const Leaving leaving(board);
  terminal.print(fmt::format("joined {} as rank {} of {}{}", arguments.host, plan.first_rank,
                             offer.world_size,
                             work == Work::plan ? "; the plan is shown there" : ""));
  if (!wait_for_start(board, signals, arguments, job.cluster.join_timeout_s)) {
    return conclude({.interrupted = true});
  }
  tell_of_failed_ranks(plan, ranks, store);
  return run_shared_job(plan, ranks.request, board, signals);
}

}  // namespace

void add_join(CLI::App& app, Action& action) {
  auto arguments = std::make_shared<JoinArguments>();
  auto* command = app.add_subcommand("join", "Join a job that waits on another machine");
  command
      ->add_option(
          "host", arguments->host,
          "The machine on which the job was started with --share or --listen; the port may "
          "be left out with --share")
      ->type_name("HOST[:PORT]");
  command
      ->add_option("--token-file", arguments->token_file,
                   "The job's shared secret, if it was not started with --share")
      ->type_name("FILE");
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
  add_encrypt(*command, "OPTIONS");
  command->add_option("--join-timeout", arguments->join_timeout_s, "How long to look for the job")
      ->type_name("SECONDS")
      ->capture_default_str()
      ->check(CLI::PositiveNumber);
  command->footer(kJoinExamples);
  command->callback(
      [arguments, &action] { action = [arguments] { return join_command(*arguments); }; });
}

}  // namespace bimetal::cli

#include "bimetal/cli/rank/rank.h"

#include <fmt/format.h>

#include <algorithm>
#include <asio/ip/host_name.hpp>
#include <chrono>
#include <cstdlib>
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
#include "bimetal/cli/json_output.h"
#include "bimetal/cli/python_command.h"
#include "bimetal/cli/rank/profile_output.h"
#include "bimetal/cli/rank/rank_observer.h"
#include "bimetal/cli/terminal.h"
#include "bimetal/job/worker_spec.h"
#include "bimetal/launch/fetch_url.h"
#include "bimetal/launch/job_board.h"
#include "bimetal/launch/local/status_pipe.h"
#include "bimetal/launch/meet.h"
#include "bimetal/launch/rank_environment.h"
#include "bimetal/membership/membership.h"
#include "bimetal/net/endpoint.h"
#include "bimetal/net/silence.h"
#include "bimetal/progress/report.h"
#include "bimetal/rendezvous/store.h"
#include "bimetal/train/server/server_setup.h"
#include "bimetal/train/trainer.h"

namespace bimetal::cli {
namespace {

/// The address of a worker of a job on several machines; loopback on one machine. A newcomer may be
/// the only rank that its launcher knows of: its address depends on where the others are.
std::string own_address(const launch::RankEnvironment& env, const RankRequest& request) {
  if (!request.door.empty()) {
    return net::address_towards(membership::doors_in(request.door).front());
  }
  return env.on_one_machine() ? "127.0.0.1" : net::address_towards(env.master);
}

/// The members of the job, if some of them may be lost.
std::unique_ptr<membership::Membership> make_members(const launch::RankEnvironment& env,
                                                     const RankRequest& request) {
  const auto& job = request.job;
  if (!request.elastic && job.zero.copies == 1) return nullptr;
  const auto join = rejoin_options(job);
  membership::Options options;
  options.listen = own_address(env, request);
  options.token = join.token;
  options.host = asio::ip::host_name();
  options.worker = request.worker;
  options.keeper = job.elastic.keeper;
  options.least = static_cast<int>(std::max<std::int64_t>(1, job.elastic.min_workers));
  options.most = static_cast<int>(job.elastic.max_workers);
  options.patience = milliseconds_of(job.elastic.patience_s);
  options.timeout = milliseconds_of(job.parallel.timeout_s);
  options.silence = net::peer_timeout_for(join.peer_timeout, net::is_loopback(options.listen));
  options.group = join.group;
  if (env.store == launch::StoreOwner::Launcher) options.board = env.master;
  return std::make_unique<membership::Membership>(options);
}

/// One rank's training.
class TrainingRank {
 public:
  TrainingRank(const launch::RankEnvironment& env, const RankRequest& request,
               launch::StatusReporter& status)
      : env_(env),
        request_(request),
        voice_(request, status,
               env.local_rank == 0 && env.store == launch::StoreOwner::Launcher && env.rank > 0) {}

  int run() {
    // Before the others are met: a port in use ends the job at once, and waiting can be watched.
    if (env_.rank == 0 && request_.door.empty()) voice_.on_leading(true);
    const auto report = train();
    voice_.end(report);
    return report.interrupted ? kInterrupted : kSuccess;
  }

 private:
  train::TrainerOptions options(StopWhen& stop) const {
    train::TrainerOptions options;
    options.worker = job::parse_worker_spec(request_.worker);
    options.local_rank = env_.local_rank;
    options.local_world_size = env_.local_world_size;
    options.host_name = asio::ip::host_name();
    if (!request_.resume.empty()) options.resume = request_.resume;
    // A user's request on a machine that has joined makes it leave. On the first machine it ends
    // the job.
    const auto leaves = [&stop, &request = request_] {
      return request.elastic && stop.by_user() && (request.joined || stop.by_term());
    };
    options.stop_requested = [&stop, leaves] { return stop() && !leaves(); };
    options.leave_requested = leaves;
    options.interrupt_requested = [&stop] { return stop.by_user(); };
    options.fetch = launch::fetch_url;
    options.goes_on = request_.elastic;
    return options;
  }

  progress::Report train() {
    std::unique_ptr<membership::Membership> members;
    comm::Group group;
    std::vector<net::Endpoint> doors;
    if (request_.door.empty()) {
      group = join_group(env_, request_.job);
      const bool ours = env_.store == launch::StoreOwner::Launcher && group.size() > 1;
      if (request_.elastic || ours) members = make_members(env_, request_);
      if (members) members->found(group);
    } else {
      members = make_members(env_, request_);
      doors = membership::doors_in(request_.door);
      group = launch::single_process_world();
    }
    if (members && request_.elastic) {
      voice_.open_door(net::to_string(members->door()), env_.store == launch::StoreOwner::Launcher);
      show_offer(*members);
    }
    StopWhen stop(request_.stop_after_s);  // not before: Ctrl-C may just end who waits for others
    auto how = options(stop);
    how.members = members.get();
    how.requests = &voice_.requests();
    how.doors = doors;
    how.log = &voice_.log();
    if (!request_.profile.empty() && voice_.terminal()) {
      how.profile = profile_request(request_.profile, request_.profile_trace, *voice_.terminal());
    }
    auto report = train::run_training(request_.job, group, how, voice_);
    if (request_.stop_after_s > 0 && !stop.by_user()) report.interrupted = false;
    return report;
  }

  /// At this member's door, so that others can join there when the first machine is gone.
  void show_offer(membership::Membership& members) const {
    const auto world = static_cast<int>(members.roll().members.size());
    auto request = for_other_machines(request_);
    request.door.clear();
    launch::JobStore store(rendezvous::connect_store(members.door(), net::Token::from_environment(),
                                                     Deadline::after(std::chrono::seconds(10))));
    launch::JobBoard board(store);
    board.offer({std::string(release()), to_text(request), world, 0}, world);
    board.start();
  }

  const launch::RankEnvironment& env_;
  const RankRequest& request_;
  RankVoice voice_;
};

/// Others print only their results.
bool prints_progress(Work work) {
  return work == Work::train || work == Work::serve_parameters;
}

/// As a launcher has asked.
int run_launched_rank() {
  const auto env = launch::rank_from_environment();
  const char* text = std::getenv(kRequestVariable);
  if (!env || text == nullptr) {
    throw Error(ErrorCode::InvalidArgument,
                "this subcommand is for the ranks that a launcher starts: run `bimetal train`, "
                "`plan`, `generate` or `evaluate`");
  }
  const auto request = parse_request(text);
  enter_python_for(request.job);
  if (request.json && prints_progress(request.work)) keep_output_for_json();
  return run_rank(*env, request);
}

}  // namespace

comm::Group join_group(const launch::RankEnvironment& env, const job::JobConfig& job) {
  auto options = rejoin_options(job);
  options.join_timeout = milliseconds_of(job.cluster.join_timeout_s);
  return launch::join_world(env, options);
}

void end_for_all(comm::Group group, const std::exception& failure) {
  group.abort(fmt::format("rank {}: {}", group.rank(), as_error(failure).what()));
}

launch::JoinOptions rejoin_options(const job::JobConfig& job) {
  launch::JoinOptions options;
  options.token = net::Token::from_environment();
  options.join_timeout = milliseconds_of(job.parallel.timeout_s);
  options.group.timeout = milliseconds_of(job.parallel.timeout_s);
  options.group.transport = transport_of(job);
  options.peer_timeout = train::peer_timeout_of(job);
  return options;
}

int train_as_rank(const launch::RankEnvironment& env, const RankRequest& request,
                  launch::StatusReporter& status) {
  if (has_servers(request)) return train_with_servers(env, request);
  return TrainingRank(env, request, status).run();
}

int run_rank(const launch::RankEnvironment& env, const RankRequest& request) {
  return run_rank_process([&](launch::StatusReporter& status) {
    switch (request.work) {
      case Work::train: return train_as_rank(env, request, status);
      case Work::serve_parameters: return serve_parameters(env, request, status);
      case Work::plan: return plan_as_rank(env, request);
      case Work::evaluate: return evaluate_as_rank(env, request);
      case Work::generate: return generate_as_rank(env, request);
    }
    throw Error(ErrorCode::CorruptData, "the launcher asks for work of an unknown kind");
  });
}

void add_rank(CLI::App& app, Action& action) {
  auto* command = app.add_subcommand("rank", "One process of a job; started by train and the like");
  command->group("");  // not for people: left out of --help
  command->add_option("what", "For those who look at processes");
  command->callback([&action] { action = run_launched_rank; });
}

}  // namespace bimetal::cli

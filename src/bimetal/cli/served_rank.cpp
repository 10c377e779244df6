#include "bimetal/cli/served_rank.h"

#include <fmt/format.h>

#include <asio/ip/host_name.hpp>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "bimetal/base/deadline.h"
#include "bimetal/base/error.h"
#include "bimetal/cli/exit_status.h"
#include "bimetal/cli/rank_monitor.h"
#include "bimetal/cli/rank_observer.h"
#include "bimetal/cli/rank_process.h"
#include "bimetal/net/encryption.h"
#include "bimetal/rendezvous/store.h"
#include "bimetal/serving/message.h"
#include "bimetal/train/observers.h"
#include "bimetal/train/served_job.h"

namespace bimetal::cli {
namespace {

constexpr std::chrono::seconds kToTell{5};
constexpr std::chrono::milliseconds kLookForServer{50};

/// Where servers and workers of a job find each other: a store, of the launcher or of server 0.
class Directory {
 public:
  /// `server`: this process's number among the servers; -1: it is a worker.
  Directory(const launch::RankEnvironment& env, const train::Job& job, int server)
      : deadline_(Deadline::after(milliseconds(job.cluster.join_timeout_s))) {
    if (env.store == launch::StoreOwner::ParameterServer) {
      if (job.parallel.replicas > 1) {
        throw Error(ErrorCode::Unsupported,
                    "parallel.replicas = 2 works with `bimetal train` alone: here the servers' "
                    "addresses are kept by server 0 and would be lost with it",
                    env.rank);
      }
      if (server == 0) served_.emplace(env.master, net::Token::from_environment());
    } else if (env.store != launch::StoreOwner::Launcher) {
      throw Error(ErrorCode::Unsupported,
                  "parallel.mode = \"server\" works with `bimetal train`, `bimetal join` and on "
                  "Ray, not yet under torchrun, mpirun, Slurm or `bimetal launch`",
                  env.rank);
    }
    store_ = rendezvous::connect_store(env.master, net::Token::from_environment(), deadline_);
  }
  void publish(int server, const net::Endpoint& endpoint) {
    store_->set(key(server), net::to_string(endpoint), deadline_);
  }
  /// `stop`: whether to give up, with Aborted. It may run elsewhere, and come later.
  net::Endpoint find(int server, const std::function<bool()>& stop) {
    // Who looks once training goes on finds everybody there.
    const auto deadline = deadline_.expired() ? Deadline::after(kToTell) : deadline_;
    while (!deadline.expired()) {
      if (const auto address = store_->try_get(key(server), deadline)) {
        return net::parse_endpoint(*address);
      }
      if (stop()) {
        throw Error(ErrorCode::Aborted,
                    fmt::format("stopped before parameter server {} was there", server));
      }
      std::this_thread::sleep_for(kLookForServer);
    }
    throw Error(
        ErrorCode::Timeout,
        fmt::format("parameter server {} was not there within cluster.join_timeout_s", server));
  }
  void publish_predictions(const net::Endpoint& endpoint) {
    store_->set(serving::kDirectoryKey, net::to_string(endpoint), Deadline::after(kToTell));
  }
  void withdraw(int server) { store_->set(key(server) + "/gone", "1", Deadline::after(kToTell)); }
  bool withdrawn(int server) {
    return store_->try_get(key(server) + "/gone", deadline_).has_value();
  }

 private:
  static std::string key(int server) { return fmt::format("parameter_server/{}", server); }

  Deadline deadline_;
  std::optional<rendezvous::StoreServer> served_;
  std::unique_ptr<rendezvous::Store> store_;
};

train::ServedNetwork network_of(const launch::RankEnvironment& env) {
  return {net::Token::from_environment(), net::encryption_from_environment(), env.job_id};
}

struct ServerArguments {
  int index = 0;
  std::string job, listen, report, resume;
  std::vector<std::string> set;
  bool no_summary = false;
  double stop_after_s = 0;
};

train::ServerRun server_run(const ServerArguments& arguments, const launch::RankEnvironment& env,
                            Directory& directory, StopWhen& stop) {
  train::ServerRun run;
  run.server = arguments.index;
  run.listen_host = arguments.listen.empty() ? env.master.host : arguments.listen;
  run.network = network_of(env);
  run.trainer.host_name = asio::ip::host_name();
  if (!arguments.resume.empty()) run.trainer.resume = arguments.resume;
  run.trainer.stop_requested = [&stop] { return stop(); };
  run.publish = [&directory, index = arguments.index](const net::Endpoint& endpoint) {
    directory.publish(index, endpoint);
  };
  run.find = [&directory, &stop](int server) {
    return directory.find(server, [&stop] { return stop.by_user(); });
  };
  run.publish_predictions = [&directory](const net::Endpoint& endpoint) {
    directory.publish_predictions(endpoint);
  };
  run.withdraw = [&directory](int server) { directory.withdraw(server); };
  return run;
}

/// Whoever has no launcher of Bimetal's own gives the job as `train` takes it.
LaunchedRank place_of_server(const ServerArguments& arguments) {
  if (arguments.job.empty()) return launched_rank();
  const auto env = launch::rank_from_environment();
  if (!env) {
    throw Error(ErrorCode::InvalidArgument, "a parameter server needs RANK and the like");
  }
  return {*env, train::load_job(arguments.job, arguments.set)};
}

int serve(const ServerArguments& arguments, launch::StatusReporter& status) {
  const auto [env, job] = place_of_server(arguments);
  Directory directory(env, job, arguments.index);
  StopWhen stop(arguments.stop_after_s);
  const auto run = server_run(arguments, env, directory, stop);
  // Of the others the one that stands in for server 0 may have something to tell. The monitor's
  // address is server 0's, and is gone with it.
  Terminal terminal;
  RankObserver observer(terminal, arguments.stop_after_s > 0 ? rate_line : progress_line, status);
  std::optional<monitor::Monitor> monitor;
  std::vector<train::Observer*> watching;
  if (arguments.index % static_cast<int>(job.parallel.servers.size()) == 0) {
    watching.push_back(&observer);
  }
  if (arguments.index == 0) {
    monitor.emplace(monitor_options(job.monitor));
    announce(*monitor, terminal);
    watching.push_back(&*monitor);
  }
  train::Observers observers(watching);
  auto report = train::run_parameter_server(job, run, observers);
  const bool led = !report.workers.empty() || arguments.index == 0;
  if (!led) return stop.by_user() ? kInterrupted : kSuccess;
  if (arguments.stop_after_s > 0 && !stop.by_user()) report.interrupted = false;
  terminal.clear();
  if (!arguments.report.empty()) train::write_report(report, arguments.report);
  if (!arguments.no_summary) print_end(terminal, report, observer.last_checkpoint());
  return report.interrupted ? kInterrupted : kSuccess;
}

int work(const RankRun& run, StopWhen& stop) {
  Directory directory(run.env, run.job, -1);
  train::ServedWorkerRun worker;
  for (int server = 0; server < train::server_processes(run.job.parallel); ++server) {
    worker.servers.push_back(directory.find(server, [&stop] { return stop(); }));
    if (directory.withdrawn(server)) worker.gone.insert(server);
  }
  worker.network = network_of(run.env);
  worker.trainer.worker = run.worker;
  worker.trainer.local_rank = run.env.local_rank;
  // The servers here are no rivals for the processors: they use one thread each, now and then.
  const bool counted = run.env.store == launch::StoreOwner::Launcher && !run.joined;
  const int servers_here = counted ? static_cast<int>(worker.servers.size()) : 0;
  worker.trainer.local_world_size = run.env.local_world_size - servers_here;
  worker.trainer.host_name = asio::ip::host_name();
  worker.trainer.stop_requested = [&stop] { return stop(); };
  worker.number = run.joined ? -1 : run.env.rank;
  return train::run_served_worker(run.job, worker) ? kSuccess : kInterrupted;
}

}  // namespace

int run_served_worker_rank(const RankRun& run) {
  return run_rank_process([&](launch::StatusReporter&) {
    StopWhen stop(0);
    try {
      return work(run, stop);
    } catch (const Error& error) {
      if (error.code() == ErrorCode::Aborted && stop()) return static_cast<int>(kInterrupted);
      throw;
    }
  });
}

void add_server(CLI::App& app, Action& action) {
  auto options = std::make_shared<ServerArguments>();
  auto* command = app.add_subcommand("server", "A parameter server of a job; started by train");
  command->group("");  // not for people: left out of --help
  command->add_option("--index", options->index);
  command->add_option("job", options->job);
  command->add_option("--set", options->set)->allow_extra_args(false);
  command->add_option("--listen", options->listen);
  command->add_option("--report", options->report);
  command->add_option("--resume", options->resume);
  command->add_flag("--no-summary", options->no_summary);
  command->add_option("--stop-after", options->stop_after_s);
  command->callback([options, &action] {
    action = [options] {
      return run_rank_process(
          [&](launch::StatusReporter& status) { return serve(*options, status); });
    };
  });
}

}  // namespace bimetal::cli

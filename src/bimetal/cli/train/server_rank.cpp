#include "bimetal/cli/train/server_rank.h"

#include <fmt/format.h>

#include <asio/ip/host_name.hpp>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "bimetal/base/error.h"
#include "bimetal/cli/exit_status.h"
#include "bimetal/cli/job_options.h"
#include "bimetal/cli/progress.h"
#include "bimetal/cli/python_command.h"
#include "bimetal/cli/terminal.h"
#include "bimetal/cli/train/rank_monitor.h"
#include "bimetal/cli/train/rank_observer.h"
#include "bimetal/cli/train/rank_process.h"
#include "bimetal/cli/train/server_directory.h"
#include "bimetal/cli/train/server_weights.h"
#include "bimetal/launch/fetch_url.h"
#include "bimetal/net/encryption.h"
#include "bimetal/progress/observers.h"
#include "bimetal/progress/progress_line.h"
#include "bimetal/train/server/server_job.h"

namespace bimetal::cli {
namespace {

train::ServerNetwork network_of(const launch::RankEnvironment& env) {
  return {net::Token::from_environment(), net::encryption_from_environment(), env.job_id};
}

struct ServerArguments {
  int index = 0;
  std::string job, listen, report, resume;
  std::vector<std::string> set;
  bool no_summary = false;
  double stop_after_s = 0;
};

/// On a machine that has joined the job.
bool joined(const ServerArguments& arguments) {
  return arguments.index > 0 && !arguments.listen.empty();
}

/// Of a machine that has joined the job: the first one's terminal shows the rest.
class DataPrinter final : public progress::Observer {
 public:
  void on_phase(const std::string&) override { terminal_.clear(); }
  void on_data(const progress::DataProgress& progress) override { printer_.on_data(progress); }
  void on_notice(const std::string& text) override { printer_.on_notice(text); }

 private:
  Terminal terminal_;
  ProgressPrinter printer_{terminal_, progress::progress_line};
};

/// What servers and workers are asked and given alike.
train::TrainerOptions trainer_of(StopWhen& stop) {
  train::TrainerOptions options;
  options.host_name = asio::ip::host_name();
  options.stop_requested = [&stop] { return stop(); };
  options.interrupt_requested = [&stop] { return stop.by_user(); };
  options.fetch = launch::fetch_url;
  return options;
}

train::ServerRun server_run(const ServerArguments& arguments, const launch::RankEnvironment& env,
                            ServerDirectory& directory, StopWhen& stop) {
  train::ServerRun run;
  run.server = arguments.index;
  run.joined = joined(arguments);
  run.listen_host = arguments.listen.empty() ? env.master.host : arguments.listen;
  run.network = network_of(env);
  run.trainer = trainer_of(stop);
  if (!arguments.resume.empty()) run.trainer.resume = arguments.resume;
  run.publish = [&directory, index = arguments.index](const net::Endpoint& endpoint) {
    directory.publish(index, endpoint);
  };
  run.find = [&directory, &stop](int server) {
    return directory.find(server, [&stop] { return stop.by_user(); });
  };
  run.publish_data = [&directory](const std::optional<net::Endpoint>& endpoint) {
    directory.publish_data(endpoint);
  };
  run.find_data = [&directory, &stop] {
    return directory.find_data([&stop] { return stop.by_user(); });
  };
  run.publish_predictions = [&directory](const net::Endpoint& endpoint) {
    directory.publish_predictions(endpoint);
  };
  run.over = [&directory] { directory.end(); };
  run.finished = [&directory] { directory.finish(); };
  run.withdraw = [&directory](int server) { directory.withdraw(server); };
  run.lost = [&directory](int server) { return directory.withdrawn(server); };
  return run;
}

/// Whoever has no launcher of Bimetal's own gives the job as `train` takes it.
LaunchedRank place_of_server(const ServerArguments& arguments) {
  if (arguments.job.empty()) return launched_rank();
  const auto env = launch::rank_from_environment();
  if (!env) {
    throw Error(ErrorCode::InvalidArgument, "a parameter server needs RANK and the like");
  }
  LaunchedRank place{*env, read_job(arguments.job, arguments.set)};
  enter_python_for(place.job);
  return place;
}

Weighing weighing_of(const job::JobConfig& job, const launch::RankEnvironment& env,
                     ServerDirectory& directory, StopWhen& stop) {
  return {directory, train::server_processes(job.servers), network_of(env),
          [&stop] { return stop(); }};
}

int run_server(const ServerArguments& arguments, LaunchedRank place, launch::StatusReporter& status,
               StopWhen& stop) {
  auto& [env, job] = place;
  ServerDirectory directory(env, job, arguments.index);
  const auto run = server_run(arguments, env, directory, stop);
  if (arguments.index == 0) {
    net::note_if_plain(run.listen_host, net::encryption_from_environment());
  }
  // Of the others the one that stands in for server 0 may have something to tell. The monitor's
  // address is server 0's, and is gone with it.
  Terminal terminal;
  RankObserver observer(
      terminal, arguments.stop_after_s > 0 ? progress::rate_line : progress::progress_line, status);
  std::optional<monitor::Monitor> monitor;
  std::vector<progress::Observer*> watching;
  const bool may_lead = arguments.index % static_cast<int>(job.servers.weights.size()) == 0;
  if (may_lead) watching.push_back(&observer);
  if (arguments.index == 0) {
    monitor.emplace(monitor_options(job.monitor));
    announce(*monitor, terminal);
    watching.push_back(&*monitor);
  }
  if (arguments.index == 0 && !arguments.no_summary) print_if_kept_nowhere(terminal, job);
  DataPrinter data_printer;
  if (!may_lead && joined(arguments)) watching.push_back(&data_printer);
  progress::Observers observers(watching);
  if (weighs_servers(job.servers)) {
    set_weights(job.servers, weigh_as_server(weighing_of(job, env, directory, stop),
                                             arguments.index, run.listen_host, observers));
  }
  auto report = train::run_parameter_server(job, run, observers);
  const bool led = !report.workers.empty() || arguments.index == 0;
  if (!led) return stop.by_user() ? kInterrupted : kSuccess;
  if (arguments.stop_after_s > 0 && !stop.by_user()) report.interrupted = false;
  terminal.clear();
  if (!arguments.report.empty()) progress::write_report(report, arguments.report);
  if (!arguments.no_summary) print_end(terminal, report, observer.last_checkpoint());
  require_printed();
  return report.interrupted ? kInterrupted : kSuccess;
}

/// Where nobody can be asked any more, what went wrong before tells more.
bool known_to_be_over(ServerDirectory& directory) {
  try {
    return directory.ended();
  } catch (const Error&) {
    return false;
  }
}

/// Error(PeerLost) where one has died that has no copy.
void find_servers(train::WorkerRun& worker, const job::ServersConfig& servers,
                  ServerDirectory& directory, StopWhen& stop) {
  const int shards = static_cast<int>(servers.weights.size());
  for (int server = 0; server < train::server_processes(servers); ++server) {
    const auto at = directory.find(server, [&stop] { return stop(); });
    worker.servers.push_back(at.value_or(net::Endpoint{}));
    if (at) continue;
    worker.gone.insert(server);
    if (servers.replicas > 1 && !worker.gone.contains(server - shards)) continue;
    throw Error(
        ErrorCode::PeerLost,
        fmt::format("parameter server {} is lost: it ended before this worker had joined it",
                    server),
        server);
  }
  worker.lost = [&directory](int server) { return directory.withdrawn(server); };
  worker.over = [&directory] { return known_to_be_over(directory); };
}

int work(const RankRun& run, StopWhen& stop, ServerDirectory& directory) {
  auto job = run.job;
  if (weighs_servers(job.servers)) {
    set_weights(job.servers, weigh_as_worker(weighing_of(job, run.env, directory, stop)));
  }
  train::WorkerRun worker;
  find_servers(worker, job.servers, directory, stop);
  worker.network = network_of(run.env);
  worker.trainer = trainer_of(stop);
  worker.trainer.worker = run.worker;
  worker.trainer.local_rank = run.env.local_rank;
  // The servers here are no rivals for the processors: they use one thread each, now and then.
  const bool counted = run.env.store == launch::StoreOwner::Launcher && !run.joined;
  const int servers_here = counted ? static_cast<int>(worker.servers.size()) : 0;
  worker.trainer.local_world_size = run.env.local_world_size - servers_here;
  worker.number = run.joined ? -1 : run.env.rank;
  worker.find_data = [&directory, &stop] {
    return directory.find_data([&stop] { return stop(); });
  };
  DataPrinter printer;
  progress::Observer silent;
  progress::Observer& observer = run.joined ? static_cast<progress::Observer&>(printer) : silent;
  return train::run_worker(job, worker, observer) ? kSuccess : kInterrupted;
}

/// A job that is resumed at its end is over before its workers have joined: for them no error.
template <typename Body>
int unless_over(ServerDirectory& directory, const Body& body) {
  try {
    return body();
  } catch (const Error& error) {
    const auto code = error.code();
    const bool missed =
        code == ErrorCode::Aborted || code == ErrorCode::PeerLost || code == ErrorCode::Timeout;
    if (missed && known_to_be_over(directory)) return kSuccess;
    throw;
  }
}

/// The user's wish to end while others are waited for is no error.
template <typename Body>
int unless_stopped(StopWhen& stop, const Body& body) {
  try {
    return body();
  } catch (const Error& error) {
    if (error.code() == ErrorCode::Aborted && stop()) return kInterrupted;
    throw;
  }
}

}  // namespace

int run_worker_rank(const RankRun& run) {
  return run_rank_process([&](launch::StatusReporter&) {
    StopWhen stop(0);
    ServerDirectory directory(run.env, run.job, -1);
    const auto attend = [&] { return work(run, stop, directory); };
    return unless_stopped(stop, [&] { return unless_over(directory, attend); });
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
      const auto place = place_of_server(*options);
      return run_rank_process([&](launch::StatusReporter& status) {
        StopWhen stop(options->stop_after_s);
        return unless_stopped(stop, [&] { return run_server(*options, place, status, stop); });
      });
    };
  });
}

}  // namespace bimetal::cli

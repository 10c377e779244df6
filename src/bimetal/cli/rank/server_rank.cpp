#include <fmt/format.h>

#include <asio/ip/host_name.hpp>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "bimetal/base/error.h"
#include "bimetal/cli/json_output.h"
#include "bimetal/cli/rank/rank.h"
#include "bimetal/cli/rank/rank_observer.h"
#include "bimetal/cli/terminal.h"
#include "bimetal/job/worker_spec.h"
#include "bimetal/launch/fetch_url.h"
#include "bimetal/net/token.h"
#include "bimetal/parallel/server/directory/directory.h"
#include "bimetal/progress/observer.h"
#include "bimetal/progress/progress.h"
#include "bimetal/progress/rank_log.h"
#include "bimetal/progress/requests.h"
#include "bimetal/train/server/server_job.h"

namespace bimetal::cli {
namespace {

namespace ps = parallel::server;

ps::Credentials credentials_of(const launch::RankEnvironment& env) {
  return {net::Token::from_environment(), net::encryption_from_environment(), env.job_id};
}

/// As a process of that job sees it. Error(Unsupported) where the job's launcher keeps none.
ps::DirectoryOptions directory_of(const launch::RankEnvironment& env, const RankRequest& request,
                                  const StopWhen& stop) {
  const auto& job = request.job;
  ps::DirectoryOptions options{
      .store = env.master,
      .token = net::Token::from_environment(),
      .deadline = Deadline::after(milliseconds_of(job.cluster.join_timeout_s)),
      .copies = job.servers.replicas > 1,
      .stop = [&stop] { return stop.by_user(); }};
  if (env.store == launch::StoreOwner::Launcher) return options;
  if (env.store != launch::StoreOwner::ParameterServer) {
    throw Error(ErrorCode::Unsupported,
                "parallel.mode = \"server\" works with `bimetal train`, `bimetal join` and on "
                "Ray, not yet under torchrun, mpirun, Slurm or `bimetal launch`",
                env.rank);
  }
  if (options.copies) {
    throw Error(
        ErrorCode::Unsupported,
        "servers.replicas = 2 works with `bimetal train` and `join` alone: here the servers' "
        "addresses are kept by server 0 and would be lost with it",
        env.rank);
  }
  options.serves_store = request.work == Work::serve_parameters && request.server == 0;
  return options;
}

/// The log of a worker or a server, and of its library, for those that watch the job.
class ProcessLog final : public progress::Observer {
 public:
  ProcessLog() {
    show_warnings([this](std::string_view kind, std::string_view text) { log_.say(kind, text); });
  }
  ~ProcessLog() override { show_warnings(); }
  ProcessLog(const ProcessLog&) = delete;
  ProcessLog& operator=(const ProcessLog&) = delete;

  void on_notice(const std::string& text) override { log_.say("notice", text); }
  progress::RankLog& log() noexcept { return log_; }

 private:
  progress::RankLog log_;
};

/// For a machine that has joined the job: the first machine's terminal shows the rest.
class DataPrinter final : public progress::Observer {
 public:
  void on_phase(const std::string&) override { terminal_.clear(); }
  void on_data(const progress::DataProgress& progress) override { printer_.on_data(progress); }
  void on_notice(const std::string& text) override { printer_.on_notice(text); }

 private:
  Terminal terminal_;
  ProgressPrinter printer_{terminal_, progress::progress_line};
};

/// The options that servers and workers have in common.
train::TrainerOptions trainer_of(StopWhen& stop) {
  train::TrainerOptions options;
  options.host_name = asio::ip::host_name();
  options.stop_requested = [&stop] { return stop(); };
  options.interrupt_requested = [&stop] { return stop.by_user(); };
  options.fetch = launch::fetch_url;
  return options;
}

int serve(const launch::RankEnvironment& env, const RankRequest& request,
          launch::StatusReporter& status, StopWhen& stop) {
  const auto& job = request.job;
  ps::ServerDirectory directory(directory_of(env, request, stop));
  train::ServerRun run;
  run.server = request.server;
  run.joined = request.joined;
  run.listen_host = request.listen.empty() ? env.master.host : request.listen;
  run.credentials = credentials_of(env);
  run.directory = &directory;
  run.trainer = trainer_of(stop);
  ProcessLog log;
  run.trainer.log = &log.log();
  if (!request.resume.empty()) run.trainer.resume = request.resume;
  if (request.server == 0) net::note_if_plain(run.listen_host, run.credentials.encryption);
  // Among the others, the stand-in for server 0 may have something to tell. The monitor's address
  // is server 0's, and is gone with it.
  Terminal terminal;
  RankObserver observer(
      terminal, request.stop_after_s > 0 ? progress::rate_line : progress::progress_line, status);
  progress::Requests requests;
  std::optional<monitor::Monitor> monitor;
  std::optional<Trackers> trackers;
  std::vector<progress::Observer*> watching;
  const bool may_lead = request.server % static_cast<int>(job.servers.weights.size()) == 0;
  if (may_lead) watching.push_back(&observer);
  if (request.server == 0) {
    // Workers have no common steps that could be profiled.
    start_monitor(monitor, request, {.requests = &requests, .profile = false}, terminal);
    run.trainer.requests = &requests;
    trackers.emplace(request, *monitor, terminal);
    watching.insert(watching.end(), {&*monitor, &*trackers});
  } else {
    watching.push_back(&log);  // those of server 0 are shown as they come
  }
  if (request.server == 0 && request.summary) print_if_kept_nowhere(terminal, job);
  DataPrinter data_printer;
  if (!may_lead && request.joined) watching.push_back(&data_printer);
  progress::Observers observers(watching);
  auto report = train::run_parameter_server(job, run, observers);
  const bool led = !report.workers.empty() || request.server == 0;
  if (!led) return stop.by_user() ? kInterrupted : kSuccess;
  if (request.stop_after_s > 0 && !stop.by_user()) report.interrupted = false;
  terminal.clear();
  if (monitor) monitor->end(report.interrupted, report.train_loss);
  if (!request.report.empty()) progress::write_report(report, request.report);
  if (request.json) print_json_text(progress::to_json(report));
  if (request.summary) print_end(terminal, report, observer.last_checkpoint());
  if (request.summary && !request.report.empty()) {
    terminal.print(fmt::format("report {}", request.report));
  }
  if (trackers) trackers->end(report.interrupted ? RunEnd::interrupted : RunEnd::finished);
  require_printed();
  return report.interrupted ? kInterrupted : kSuccess;
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

int train_with_servers(const launch::RankEnvironment& env, const RankRequest& request) {
  StopWhen stop(0);
  ps::ServerDirectory directory(directory_of(env, request, stop));
  train::WorkerRun run;
  run.credentials = credentials_of(env);
  run.directory = &directory;
  run.trainer = trainer_of(stop);
  run.trainer.worker = job::parse_worker_spec(request.worker);
  run.trainer.local_rank = env.local_rank;
  // The servers here are no rivals for the processors: they use one thread each, now and then.
  const bool counted = env.store == launch::StoreOwner::Launcher && !request.joined;
  const int servers_here = counted ? job::server_processes(request.job.servers) : 0;
  run.trainer.local_world_size = env.local_world_size - servers_here;
  run.number = request.joined ? -1 : env.rank;
  ProcessLog log;
  run.trainer.log = &log.log();
  DataPrinter printer;
  progress::Observers observers({&log});
  if (request.joined) observers.tell({&log, &printer});
  return unless_stopped(stop, [&] {
    return train::run_worker(request.job, run, observers) ? kSuccess : kInterrupted;
  });
}

int serve_parameters(const launch::RankEnvironment& env, const RankRequest& request,
                     launch::StatusReporter& status) {
  StopWhen stop(request.stop_after_s);
  return unless_stopped(stop, [&] { return serve(env, request, status, stop); });
}

}  // namespace bimetal::cli

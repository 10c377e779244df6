#include "bimetal/cli/train/rank.h"

#include <fmt/format.h>

#include <asio/ip/host_name.hpp>
#include <functional>
#include <memory>
#include <utility>

#include "bimetal/cli/exit_status.h"
#include "bimetal/cli/terminal.h"
#include "bimetal/cli/train/profile_output.h"
#include "bimetal/cli/train/rank_monitor.h"
#include "bimetal/cli/train/rank_observer.h"
#include "bimetal/cli/train/rank_process.h"
#include "bimetal/cli/train/server_rank.h"
#include "bimetal/cli/train/summary.h"
#include "bimetal/launch/fetch_url.h"
#include "bimetal/launch/local/status_pipe.h"
#include "bimetal/launch/meet.h"
#include "bimetal/monitor/monitor.h"
#include "bimetal/progress/observers.h"
#include "bimetal/progress/progress_line.h"
#include "bimetal/progress/report.h"
#include "bimetal/train/trainer.h"

namespace bimetal::cli {
namespace {

/// Of a rank beside one that shows the rest.
class RescueObserver final : public progress::Observer {
 public:
  explicit RescueObserver(launch::StatusReporter& status) : status_(status) {}
  void on_rescue(const progress::Rescue& rescue) override { status_.rescue(rescue); }

 private:
  launch::StatusReporter& status_;
};

/// Empty where nothing outlives a rank that they could meet by.
std::function<train::Left()> meet_again_of(const launch::RankEnvironment& env,
                                           const job::JobConfig& job) {
  if (env.store != launch::StoreOwner::Launcher) return {};
  return [&env, &job] {
    auto [group, lost] = launch::meet_again(env, rejoin_options(job));
    return train::Left{std::move(group), lost};
  };
}

train::TrainerOptions trainer_options(const RankRun& run, StopWhen& stop) {
  train::TrainerOptions options;
  options.worker = run.worker;
  options.local_rank = run.env.local_rank;
  options.local_world_size = run.env.local_world_size;
  options.host_name = asio::ip::host_name();
  if (!run.resume.empty()) options.resume = run.resume;
  options.stop_requested = [&stop] { return stop(); };
  options.interrupt_requested = [&stop] { return stop.by_user(); };
  options.fetch = launch::fetch_url;
  options.meet_again = meet_again_of(run.env, run.job);
  return options;
}

progress::Report train_in(comm::Group group, const RankRun& run, progress::Observer& observer,
                          Terminal* terminal = nullptr) {
  StopWhen stop(run.stop_after_s);
  auto options = trainer_options(run, stop);
  if (!run.profile.empty() && terminal) {
    options.profile = profile_request(run.profile, run.profile_trace, *terminal);
  }
  auto report = train::run_training(run.job, group, options, observer);
  if (run.stop_after_s > 0 && !stop.by_user()) report.interrupted = false;
  return report;
}

/// The first rank of a machine that has joined: its terminal shows the job, too.
int train_as_guest(const RankRun& run, launch::StatusReporter& status) {
  Terminal terminal;
  ProgressPrinter printer(terminal, progress::progress_line);
  RescueObserver rescues(status);
  progress::Observers observers({&printer, &rescues});
  const auto report = train_in(join_group(run.env, run.job), run, observers);
  terminal.clear();
  if (!report.workers.empty()) print_summary(terminal, report, {});
  return report.interrupted ? kInterrupted : kSuccess;
}

int train_and_report(const RankRun& run, launch::StatusReporter& status) {
  const bool first_here = run.env.local_rank == 0 && run.env.store == launch::StoreOwner::Launcher;
  if (run.env.rank != 0 && first_here) return train_as_guest(run, status);
  if (run.env.rank != 0) {
    RescueObserver quiet(status);
    const auto report = train_in(join_group(run.env, run.job), run, quiet);
    return report.interrupted ? kInterrupted : kSuccess;
  }
  Terminal terminal;
  RankObserver observer(
      terminal, run.stop_after_s > 0 ? progress::rate_line : progress::progress_line, status);
  // Before the others are met: a port in use ends the job at once, and waiting can be watched, too.
  monitor::Monitor monitor(monitor_options(run.job.monitor));
  announce(monitor, terminal);
  if (run.summary) print_if_kept_nowhere(terminal, run.job);
  progress::Observers observers({&observer, &monitor});
  const auto report = train_in(join_group(run.env, run.job), run, observers, &terminal);
  terminal.clear();
  if (!run.report.empty()) progress::write_report(report, run.report);
  // Then those of the job are what `train` has started.
  const bool all_here = run.env.local_world_size == run.env.world_size &&
                        run.env.store == launch::StoreOwner::Launcher;
  if (run.summary) {
    print_end(terminal, report, observer.last_checkpoint(),
              all_here ? run.job.cluster.workers : std::vector<std::string>());
  }
  require_printed();
  return report.interrupted ? kInterrupted : kSuccess;
}

}  // namespace

int run_rank(const RankRun& run) {
  if (run.job.parallel.mode == "server") return run_worker_rank(run);
  return run_rank_process(
      [&](launch::StatusReporter& status) { return train_and_report(run, status); });
}

void add_worker(CLI::App& app, Action& action) {
  struct Options {
    std::string worker = "auto", report, resume, profile, profile_trace;
    bool no_summary = false, joined = false;
    double stop_after_s = 0;
  };
  auto options = std::make_shared<Options>();
  auto* command = app.add_subcommand("worker", "One rank of a job; started by train and join");
  command->group("");  // not for people: left out of --help
  command->add_option("--worker", options->worker);
  command->add_option("--report", options->report);
  command->add_option("--resume", options->resume);
  command->add_option("--profile", options->profile);
  command->add_option("--profile-trace", options->profile_trace);
  command->add_flag("--no-summary", options->no_summary);
  command->add_option("--stop-after", options->stop_after_s);
  command->add_flag("--joined", options->joined);
  command->callback([options, &action] {
    action = [options] {
      const auto [env, job] = launched_rank();
      return run_rank({env, job, job::parse_worker_spec(options->worker), options->report,
                       options->resume, options->profile, options->profile_trace,
                       !options->no_summary, options->stop_after_s, options->joined});
    };
  });
}

}  // namespace bimetal::cli

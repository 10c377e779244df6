#include "bimetal/cli/rank/rank.h"

#include <asio/ip/host_name.hpp>
#include <cstdlib>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "bimetal/base/error.h"
#include "bimetal/cli/command.h"
#include "bimetal/cli/exit_status.h"
#include "bimetal/cli/python_command.h"
#include "bimetal/cli/rank/profile_output.h"
#include "bimetal/cli/rank/rank_observer.h"
#include "bimetal/cli/rank/rank_process.h"
#include "bimetal/cli/terminal.h"
#include "bimetal/job/worker_spec.h"
#include "bimetal/launch/fetch_url.h"
#include "bimetal/launch/meet.h"
#include "bimetal/monitor/monitor.h"
#include "bimetal/progress/observer.h"
#include "bimetal/progress/progress_line.h"
#include "bimetal/progress/report.h"
#include "bimetal/train/trainer.h"

namespace bimetal::cli {
namespace {

/// One rank's training.
class TrainingRank {
 public:
  TrainingRank(const launch::RankEnvironment& env, const RankRequest& request,
               launch::StatusReporter& status)
      : env_(env), request_(request), status_(status) {}

  int run() {
    const bool first_here = env_.local_rank == 0 && env_.store == launch::StoreOwner::Launcher;
    if (env_.rank == 0) return lead();
    return first_here ? show_as_guest() : work();
  }

 private:
  /// Empty where nothing outlives a rank that they could meet by.
  std::function<train::Left()> meet_again() const {
    if (env_.store != launch::StoreOwner::Launcher) return {};
    return [this] {
      auto [group, lost] = launch::meet_again(env_, rejoin_options(request_.job));
      return train::Left{std::move(group), lost};
    };
  }

  train::TrainerOptions options(StopWhen& stop) const {
    train::TrainerOptions options;
    options.worker = job::parse_worker_spec(request_.worker);
    options.local_rank = env_.local_rank;
    options.local_world_size = env_.local_world_size;
    options.host_name = asio::ip::host_name();
    if (!request_.resume.empty()) options.resume = request_.resume;
    options.stop_requested = [&stop] { return stop(); };
    options.interrupt_requested = [&stop] { return stop.by_user(); };
    options.fetch = launch::fetch_url;
    options.meet_again = meet_again();
    return options;
  }

  progress::Report train(progress::Observer& observer, Terminal* terminal = nullptr) {
    auto group = join_group(env_, request_.job);
    StopWhen stop(request_.stop_after_s);  // not before: Ctrl-C may just end who waits for others
    auto how = options(stop);
    if (!request_.profile.empty() && terminal) {
      how.profile = profile_request(request_.profile, request_.profile_trace, *terminal);
    }
    auto report = train::run_training(request_.job, group, how, observer);
    if (request_.stop_after_s > 0 && !stop.by_user()) report.interrupted = false;
    return report;
  }

  static int status_of(const progress::Report& report) {
    return report.interrupted ? kInterrupted : kSuccess;
  }

  int work() {
    RescueObserver quiet(status_);
    return status_of(train(quiet));
  }

  /// The first rank of a machine that has joined: its terminal shows the job, too.
  int show_as_guest() {
    Terminal terminal;
    ProgressPrinter printer(terminal, progress::progress_line);
    RescueObserver rescues(status_);
    progress::Observers observers({&printer, &rescues});
    const auto report = train(observers);
    terminal.clear();
    if (!report.workers.empty()) print_summary(terminal, report);
    return status_of(report);
  }

  int lead() {
    const auto& job = request_.job;
    Terminal terminal;
    RankObserver observer(terminal,
                          request_.stop_after_s > 0 ? progress::rate_line : progress::progress_line,
                          status_);
    // Before the others are met: a port in use ends the job at once, and waiting can be watched.
    monitor::Monitor monitor(monitor_options(job.monitor));
    announce(monitor, terminal);
    if (request_.summary) print_if_kept_nowhere(terminal, job);
    progress::Observers observers({&observer, &monitor});
    const auto report = train(observers, &terminal);
    terminal.clear();
    if (!request_.report.empty()) progress::write_report(report, request_.report);
    if (request_.summary) print_end(terminal, report, observer.last_checkpoint());
    require_printed();
    return status_of(report);
  }

  const launch::RankEnvironment& env_;
  const RankRequest& request_;
  launch::StatusReporter& status_;
};

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
  return run_rank(*env, request);
}

}  // namespace

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

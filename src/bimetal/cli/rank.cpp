#include "bimetal/cli/rank.h"

#include <fmt/format.h>

#include <asio/ip/host_name.hpp>
#include <chrono>
#include <memory>
#include <optional>
#include <utility>

#include "bimetal/base/deadline.h"
#include "bimetal/cli/exit_status.h"
#include "bimetal/cli/progress.h"
#include "bimetal/cli/rank_process.h"
#include "bimetal/cli/summary.h"
#include "bimetal/launch/fetch_url.h"
#include "bimetal/launch/status_pipe.h"
#include "bimetal/launch/stop_request.h"
#include "bimetal/train/report.h"
#include "bimetal/train/trainer.h"

namespace bimetal::cli {
namespace {

/// The launcher is told how the job gets on no more often than that.
constexpr std::chrono::milliseconds kTellEvery{1000};

/// Passes what rank 0 is told on to the printer and to the launcher.
class RankObserver final : public ProgressPrinter {
 public:
  RankObserver(Terminal& terminal, Line line, launch::StatusReporter& status)
      : ProgressPrinter(terminal, std::move(line)), status_(status) {}

  void on_step(const train::Progress& progress) override {
    ProgressPrinter::on_step(progress);
    if (!next_.expired()) return;
    next_ = Deadline::after(kTellEvery);
    status_.progress(progress);
  }

  void on_evaluated(std::int64_t epoch, double accuracy, double loss) override {
    ProgressPrinter::on_evaluated(epoch, accuracy, loss);
    status_.evaluated(epoch, accuracy, loss);
  }

  void on_checkpoint(const std::string& path, std::int64_t step) override {
    last_checkpoint_ = path;
    status_.checkpoint(path, step);
  }

  const std::string& last_checkpoint() const noexcept { return last_checkpoint_; }

 private:
  launch::StatusReporter& status_;
  Deadline next_ = Deadline::after(std::chrono::milliseconds(0));
  std::string last_checkpoint_;
};

/// Asks for the end when the user does, or when the run's time is up.
class StopWhen {
 public:
  explicit StopWhen(double after_s) : after_s_(after_s) {}

  /// Asked between steps; the first time is when training begins.
  bool operator()() {
    constexpr int kLeastSteps = 5;  // fewer say nothing about a speed
    if (!end_ && after_s_ > 0) end_ = Deadline::after(milliseconds(after_s_));
    return by_user() || (end_ && ++steps_ >= kLeastSteps && end_->expired());
  }
  bool by_user() const noexcept { return request_.requested(); }

 private:
  launch::StopRequest request_;
  double after_s_;
  std::optional<Deadline> end_;
  int steps_ = 0;
};

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
  return options;
}

train::Report train_in(comm::Group group, const RankRun& run, train::Observer& observer) {
  StopWhen stop(run.stop_after_s);
  auto report = train::run_training(run.job, group, trainer_options(run, stop), observer);
  if (run.stop_after_s > 0 && !stop.by_user()) report.interrupted = false;
  return report;
}

void print_end(Terminal& terminal, const train::Report& report, const std::string& checkpoint) {
  if (report.interrupted && report.workers.empty()) {
    terminal.print("stopped before training began");
    return;
  }
  print_summary(terminal, report);
  if (checkpoint.empty()) {
    if (report.interrupted) {
      terminal.print("nothing was saved: the job has no [checkpoint] dir");
    }
  } else if (report.interrupted) {
    terminal.print(fmt::format("checkpoint {}; go on with --resume {}", checkpoint, checkpoint));
  } else {
    terminal.print(fmt::format("checkpoint {}", checkpoint));
  }
}

int train_and_report(const RankRun& run, launch::StatusReporter& status) {
  auto group = join_group(run.env, run.job);
  if (run.env.rank != 0) {
    train::Observer silent;
    return train_in(group, run, silent).interrupted ? kInterrupted : kSuccess;
  }
  Terminal terminal;
  RankObserver observer(terminal, run.stop_after_s > 0 ? rate_line : progress_line, status);
  const auto report = train_in(group, run, observer);
  terminal.clear();
  if (!run.report.empty()) train::write_report(report, run.report);
  if (run.summary) print_end(terminal, report, observer.last_checkpoint());
  return report.interrupted ? kInterrupted : kSuccess;
}

}  // namespace

int run_rank(const RankRun& run) {
  return run_rank_process(
      [&](launch::StatusReporter& status) { return train_and_report(run, status); });
}

void add_worker(CLI::App& app, Action& action) {
  struct Options {
    std::string worker = "auto", report, resume;
    bool no_summary = false;
    double stop_after_s = 0;
  };
  auto options = std::make_shared<Options>();
  auto* command = app.add_subcommand("worker", "One rank of a job; started by train and join");
  command->group("");  // not for people: left out of --help
  command->add_option("--worker", options->worker);
  command->add_option("--report", options->report);
  command->add_option("--resume", options->resume);
  command->add_flag("--no-summary", options->no_summary);
  command->add_option("--stop-after", options->stop_after_s);
  command->callback([options, &action] {
    action = [options] {
      const auto [env, job] = launched_rank();
      return run_rank({env, job, device::parse_worker_spec(options->worker), options->report,
                       options->resume, !options->no_summary, options->stop_after_s});
    };
  });
}

}  // namespace bimetal::cli

#pragma once
// The words of the process that leads a job: those it shows, those it tells its launcher and
// watchers, and the user's requests to it.

#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "bimetal/base/deadline.h"
#include "bimetal/cli/rank/rank_request.h"
#include "bimetal/cli/rank/trackers.h"
#include "bimetal/cli/terminal.h"
#include "bimetal/job/job_config.h"
#include "bimetal/launch/local/process.h"
#include "bimetal/launch/local/status_pipe.h"
#include "bimetal/monitor/monitor.h"
#include "bimetal/progress/observer.h"
#include "bimetal/progress/rank_log.h"
#include "bimetal/progress/report.h"
#include "bimetal/progress/requests.h"

namespace bimetal::cli {

// Rank 0's display while it trains.

/// On a terminal one live line; elsewhere a plain line every few seconds. Ends of epochs and
/// notices are lines that stay.
class ProgressPrinter : public progress::Observer {
 public:
  using Line = std::function<std::string(const progress::Progress&)>;
  ProgressPrinter(Terminal& terminal, Line line) : terminal_(terminal), line_(std::move(line)) {}

  void on_phase(const std::string& what) override;
  void on_data(const progress::DataProgress& progress) override;
  void on_step(const progress::Progress& progress) override;
  void on_evaluated(std::int64_t epoch, const progress::Evaluation& evaluation) override;
  void on_notice(const std::string& text) override;

 private:
  using Clock = std::chrono::steady_clock;

  void show_now_and_then(const std::function<std::string()>& line);

  Terminal& terminal_;
  Line line_;
  Clock::time_point next_{};
};

/// "sending 29.5 MiB of data to 1 machine: 42 %, 0:07 left".
std::string data_line(const progress::DataProgress& progress);

/// The launcher is told how the job gets on no more often than that.
inline constexpr std::chrono::milliseconds kTellEvery{1000};

/// Passes what rank 0 is told on to the printer and to the launcher.
class RankObserver final : public ProgressPrinter {
 public:
  RankObserver(Terminal& terminal, Line line, launch::StatusReporter& status)
      : ProgressPrinter(terminal, std::move(line)), status_(status) {}

  void on_step(const progress::Progress& progress) override {
    ProgressPrinter::on_step(progress);
    if (!next_.expired()) return;
    next_ = Deadline::after(kTellEvery);
    status_.progress(progress);
  }

  void on_evaluated(std::int64_t epoch, const progress::Evaluation& evaluation) override {
    ProgressPrinter::on_evaluated(epoch, evaluation);
    status_.evaluated(epoch, evaluation);
  }

  void on_checkpoint(const std::string& path, std::int64_t step) override {
    last_checkpoint_ = path;
    status_.checkpoint(path, step);
  }

  void on_rescue(const progress::Rescue& rescue) override { status_.rescue(rescue); }

  const std::string& last_checkpoint() const noexcept { return last_checkpoint_; }

 private:
  launch::StatusReporter& status_;
  Deadline next_ = Deadline::after(std::chrono::milliseconds(0));
  std::string last_checkpoint_;
};

/// The words of one rank of a job. The leading rank tells everything. On a machine that has joined,
/// the first rank shows the job's progress, too. The other ranks tell only their launcher.
class RankVoice final : public progress::Observers {
 public:
  /// Both must outlive it.
  RankVoice(const RankRequest& request, launch::StatusReporter& status, bool guest);
  ~RankVoice() override;

  /// Others can join there. This rank's launcher is told so, and so are people while the rank
  /// leads, unless an engine brings newcomers. `said`: people know of it at the start.
  void open_door(std::string address, bool said);

  /// Prints and writes everything that is due at the end of the run.
  void end(const progress::Report& report);

  /// nullptr: it shows nothing.
  Terminal* terminal() { return leads_ || guest_ ? &terminal_ : nullptr; }

  /// This rank's log, beside its figures.
  progress::RankLog& log() noexcept { return log_; }

  /// The users' requests from the page, while this rank leads.
  progress::Requests& requests() noexcept { return requests_; }

  void on_leading(bool leads) override;
  void on_workers(const std::vector<progress::WorkerPlace>& places) override;
  void on_rescue(const progress::Rescue& rescue) override;
  void on_notice(const std::string& text) override;
  void on_sample(const progress::Sample& sample) override;

 private:
  void end_trackers(RunEnd how);
  void leave_last_words() const;

  const RankRequest& request_;
  launch::StatusReporter& status_;
  bool guest_, leads_ = false;
  progress::RankLog log_;
  Terminal terminal_;
  RankObserver lead_;
  ProgressPrinter printer_;
  progress::Requests requests_;
  std::optional<monitor::Monitor> monitor_;
  std::optional<Trackers> trackers_;  // last: they read the monitor
  std::vector<progress::WorkerPlace> places_;
  std::string door_;
  std::jthread reader_;  // last: it tells the monitor the text of a sample's tokens
};

/// Asks for the end when the user does, or when the run's time is up.
class StopWhen {
 public:
  explicit StopWhen(double after_s) : after_s_(after_s) {}

  /// Asked between steps; the first time is when training begins.
  bool operator()() {
    constexpr int kLeastSteps = 5;  // fewer say nothing about a speed
    if (!end_ && after_s_ > 0) end_ = Deadline::after(milliseconds_of(after_s_));
    return by_user() || (end_ && ++steps_ >= kLeastSteps && end_->expired());
  }
  bool by_user() const noexcept { return request_.requested(); }
  /// By SIGTERM, which other programs send to end one process.
  bool by_term() const noexcept { return request_.by_term(); }

 private:
  launch::StopRequest request_;
  double after_s_;
  std::optional<Deadline> end_;
  int steps_ = 0;
};

/// Starts the monitor that [monitor] asks for, with this job's token and buttons, and prints its
/// address. A page that is there only because of the terminal is left out if it cannot be made.
void start_monitor(std::optional<monitor::Monitor>& monitor, const RankRequest& request,
                   const monitor::Buttons& buttons, Terminal& terminal);

/// Before training: that nothing of it will be kept, where that is so.
void print_if_kept_nowhere(Terminal& terminal, const job::JobConfig& job);

/// Figures of the whole job, and a table of the workers where there are several.
void print_summary(Terminal& terminal, const progress::Report& report);

/// The same at the end of a training, and where to go on from.
void print_end(Terminal& terminal, const progress::Report& report, const std::string& checkpoint);

}  // namespace bimetal::cli

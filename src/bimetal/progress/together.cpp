#include "bimetal/progress/together.h"

#include <fmt/format.h>

#include <algorithm>
#include <condition_variable>
#include <exception>
#include <limits>
#include <mutex>
#include <utility>
#include <vector>

#include "bimetal/base/deadline.h"

namespace bimetal::progress {
namespace {

// Parts of the time below this are not worth words.
constexpr double kNotable = 0.05;

/// The others wait for the rank that waits least.
const WorkerReport& least_waiting(const Report& report) {
  const WorkerReport* least = nullptr;
  for (const auto& worker : report.workers) {
    if (worker.samples == 0) continue;
    if (!least || worker.wait_s < least->wait_s) least = &worker;
  }
  return least ? *least : report.workers.front();
}

std::string waiting(const Report& report, const WorkerReport& fastest) {
  const auto part = fastest.wait_s / report.elapsed_s;
  if (part < kNotable) return fmt::format("waited for {:.0f} %", 100 * part);
  const auto& least = least_waiting(report);
  if (least.rank == fastest.rank || least.wait_s > fastest.wait_s / 2) {
    return fmt::format(
        "waited for {:.0f} %, as all did: for each other in turn, or for the exchange", 100 * part);
  }
  return fmt::format(
      "waited for {:.0f} %, most of all for rank {} with its {:.0f} % of the samples", 100 * part,
      least.rank, 100 * least.share);
}

/// Ranks that got nothing for a part of the run, by the history's shares.
std::string left_out(const Report& report) {
  std::string text;
  for (const auto& worker : report.workers) {
    const auto rank = static_cast<std::size_t>(worker.rank);
    const auto idle = std::ranges::count_if(report.history, [&](const HistoryPoint& point) {
      return rank < point.shares.size() && point.shares[rank] == 0;
    });
    if (report.history.empty()) break;
    const auto part = static_cast<double>(idle) / static_cast<double>(report.history.size());
    if (part < kNotable) continue;
    text += fmt::format("; rank {} had no samples in {:.0f} % of the steps", rank, 100 * part);
  }
  return text;
}

std::string where_time_went(const Report& report, const WorkerReport& fastest) {
  const auto computing = fastest.compute_s / report.elapsed_s;
  auto text = fmt::format("it computed for {:.0f} % of the time and {}", 100 * computing,
                          waiting(report, fastest));
  const auto rest = 1 - (fastest.compute_s + fastest.wait_s) / report.elapsed_s;
  if (rest >= kNotable) {
    text += fmt::format("; {:.0f} % went into neither (fetching batches, watching, the system)",
                        100 * rest);
  }
  text += left_out(report);
  if (report.balance && report.balance->policy != "auto") {
    text += fmt::format("; shares were {} by the job's parallel.balance, and did not follow speed",
                        report.balance->policy);
  }
  return text;
}

}  // namespace

using std::chrono::milliseconds;

struct RunningTask::State {
  Meter meter;
  std::mutex mutex;
  std::condition_variable changed;
  bool done = false;
  std::exception_ptr error;
};

RunningTask::RunningTask(Task task) : state_(std::make_shared<State>()) {
  if (!task) {
    state_->done = true;
    return;
  }
  thread_ = std::thread([state = state_, task = std::move(task)] {
    std::exception_ptr error;
    try {
      task(state->meter);
    } catch (...) {
      error = std::current_exception();
    }
    const std::scoped_lock lock(state->mutex);
    state->error = error;
    state->done = true;
    state->changed.notify_all();
  });
}

RunningTask::~RunningTask() {
  state_->meter.stop();
  if (!thread_.joinable()) return;
  if (wait(kToEnd)) {
    thread_.join();
  } else {
    thread_.detach();  // stuck in the system; it owns all that it uses
  }
}

bool RunningTask::done_within(milliseconds time) {
  const bool done = wait(time);
  if (done && state_->error) std::rethrow_exception(state_->error);
  return done;
}

const Meter& RunningTask::meter() const {
  return state_->meter;
}

bool RunningTask::wait(milliseconds time) {
  std::unique_lock lock(state_->mutex);
  return state_->changed.wait_for(lock, time, [this] { return state_->done; });
}

std::optional<FastestAlone> fastest_alone(const Report& report) {
  // A worker with a part of the model cannot be compared with the whole job.
  if (report.workers.size() < 2 || !(report.elapsed_s > 0) || report.mesh) return std::nullopt;
  const auto fastest =
      std::ranges::max_element(report.workers, {}, &WorkerReport::samples_per_s_alone);
  if (!(fastest->samples_per_s_alone > 0)) return std::nullopt;
  return FastestAlone{fastest->rank, fastest->samples_per_s_alone,
                      report.samples_per_s / fastest->samples_per_s_alone,
                      where_time_went(report, *fastest)};
}

namespace {

using std::chrono::milliseconds;

constexpr milliseconds kRound{250};

/// The ranks' answers in one round.
struct Round {
  bool all_done = true, interrupted = false;
  double done_bytes = 0, expected_bytes = 0;
};

Round exchange_state(comm::Group group, bool done, bool interrupted, const Meter& meter,
                     milliseconds timeout) {
  const std::vector<std::int64_t> mine = {done, interrupted,
                                          static_cast<std::int64_t>(meter.done()),
                                          static_cast<std::int64_t>(meter.expected())};
  std::vector<std::int64_t> all(mine.size() * static_cast<std::size_t>(group.size()));
  group
      .all_gather(comm::buffer(std::span(mine)), comm::buffer(std::span(all)),
                  Deadline::after(timeout))
      .wait();
  Round round;
  for (std::size_t at = 0; at < all.size(); at += mine.size()) {
    round.all_done = round.all_done && all[at] != 0;
    round.interrupted = round.interrupted || all[at + 1] != 0;
    round.done_bytes += static_cast<double>(all[at + 2]);
    round.expected_bytes += static_cast<double>(all[at + 3]);
  }
  return round;
}

DataProgress progress_of(const std::string& what, const Round& round, double seconds) {
  constexpr double kUnknown = std::numeric_limits<double>::quiet_NaN();
  DataProgress progress{what, kUnknown, kUnknown};
  if (round.expected_bytes <= 0) return progress;
  progress.part = round.done_bytes / round.expected_bytes;
  if (progress.part > 0) progress.seconds_left = seconds * (1 - progress.part) / progress.part;
  return progress;
}

/// Throws Timeout once the meter has stood still for too long.
class Patience {
 public:
  Patience(comm::Group group, const TogetherOptions& options)
      : rank_(group.rank()), what_(options.what), timeout_(options.timeout) {}

  void watch(const Meter& meter) {
    const auto now = std::pair(meter.done(), meter.expected());
    if (std::exchange(seen_, now) != now) end_ = Deadline::after(timeout_ + RunningTask::kToEnd);
    if (!end_.expired()) return;
    throw Error(ErrorCode::Timeout,
                fmt::format("{}: nothing has come for {} s, after {} bytes; is the disk or network "
                            "of that rank in order? (parallel.timeout_s allows for more)",
                            what_, std::chrono::duration<double>(timeout_).count(), now.first),
                rank_);
  }

 private:
  const int rank_;
  const std::string what_;
  const milliseconds timeout_;
  std::pair<std::uint64_t, std::uint64_t> seen_{};
  // A task that watches the other side itself, with the same timeout, knows better what to say.
  Deadline end_ = Deadline::after(timeout_ + RunningTask::kToEnd);
};

void keep_company(comm::Group group, RunningTask& running, const TogetherOptions& options,
                  Observer& observer) {
  Patience patience(group, options);
  const Stopwatch watch;
  for (;;) {
    const bool done = running.done_within(kRound);
    if (!done) patience.watch(running.meter());
    const bool stop = options.interrupt_requested && options.interrupt_requested();
    const auto round = exchange_state(group, done, stop, running.meter(), options.timeout);
    if (round.interrupted) throw Interrupted();
    if (round.all_done) return;
    observer.on_data(progress_of(options.what, round, watch.seconds()));
  }
}

}  // namespace

void run_together(comm::Group group, const Task& task, const TogetherOptions& options,
                  Observer& observer) {
  RunningTask running(task);
  try {
    keep_company(group, running, options, observer);
  } catch (...) {
    if (options.cancel) options.cancel();
    throw;
  }
}

}  // namespace bimetal::progress

#include "bimetal/progress/together.h"

#include <fmt/format.h>

#include <limits>
#include <utility>
#include <vector>

#include "bimetal/base/stopwatch.h"
#include "bimetal/progress/running_task.h"

namespace bimetal::progress {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kRound{250};

/// What all ranks have told in one round.
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

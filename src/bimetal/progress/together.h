#pragma once
// Work of unknown length that some ranks must do before the others can go on: reading, fetching and
// sending data. Nobody waits in silence for it.
//
// Work on files, on a thread of its own.

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>

#include "bimetal/base/error.h"
#include "bimetal/comm/group.h"
#include "bimetal/progress/observer.h"
#include "bimetal/progress/report.h"

namespace bimetal::progress {

/// Owns all that it uses (shared pointers, copies), since it is left behind if it cannot be ended,
/// as when a network file system is gone.
using Task = std::function<void(Meter&)>;

/// Told to stop, and waited for a while, where this object ends before it.
class RunningTask {
 public:
  static constexpr std::chrono::milliseconds kToEnd{2000};  ///< for a task that was told to stop

  /// An empty one is done.
  explicit RunningTask(Task task);
  ~RunningTask();
  RunningTask(const RunningTask&) = delete;
  RunningTask& operator=(const RunningTask&) = delete;

  /// Whether it is done, within that time. Rethrows its error.
  bool done_within(std::chrono::milliseconds time);

  const Meter& meter() const;

 private:
  struct State;

  bool wait(std::chrono::milliseconds time);

  std::shared_ptr<State> state_;
  std::thread thread_;
};

// How a finished job did beside its fastest device by itself, and where that device's time went.

/// The meaning of "alone" in a run's own figures.
inline constexpr const char* kAloneFrom =
    "each worker's own compute time in this run, beside the others; not a run by itself";

struct FastestAlone {
  int rank = 0;
  double samples_per_s_alone = 0;
  double job_relative = 0;  ///< the job's rate ÷ that; below 1: alone it would have been faster
  std::string time = {};    ///< where its time went, in words
};

/// The figures of the worker that is fastest alone; none for a job of one worker, or one without
/// figures.
std::optional<FastestAlone> fastest_alone(const Report& report);

/// The user has asked for the end before training began. Thrown on every rank.
class Interrupted : public Error {
 public:
  Interrupted() : Error(ErrorCode::Aborted, "interrupted before training began") {}
};

struct TogetherOptions {
  std::string what;                   ///< for DataProgress
  std::chrono::milliseconds timeout;  ///< longest time without progress on any rank
  std::function<bool()> interrupt_requested = {};
  std::function<void()> cancel = {};  ///< wakes this rank's task when the others have failed
};

/// Runs each rank's task (an empty one: nothing) and returns on all ranks when all are done.
/// Meanwhile the ranks exchange how far they are, so that each wait is short and a rank that is
/// lost or stuck is found out. Collective. Errors: the task's own, on its rank (which must then end
/// the group); Timeout, if it makes no progress; Interrupted; and the fabric's.
void run_together(comm::Group group, const Task& task, const TogetherOptions& options,
                  Observer& observer);

}  // namespace bimetal::progress

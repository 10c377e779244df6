#pragma once
// Work on files, on a thread of its own.

#include <chrono>
#include <functional>
#include <memory>
#include <thread>

#include "bimetal/progress/observer.h"

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

}  // namespace bimetal::progress

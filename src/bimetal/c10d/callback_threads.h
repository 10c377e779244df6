#pragma once
// Threads for what a user has attached to futures, and which may block.

#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>

#include "bimetal/base/deadline.h"

namespace bimetal::c10d {

/// Begins tasks in the order in which they come, each at once: there are as many threads as
/// tasks that run or block at a time, and a few are kept for the next ones. Thread-safe. A task
/// must not throw.
class CallbackThreads {
 public:
  CallbackThreads() : shared_(std::make_shared<Shared>()) {}
  /// Ends the threads that have nothing to do; one whose task still blocks ends behind it, if ever.
  ~CallbackThreads();
  CallbackThreads(const CallbackThreads&) = delete;
  CallbackThreads& operator=(const CallbackThreads&) = delete;

  /// std::system_error where a thread is needed and the system has none.
  void run(std::function<void()> task);

  /// False if tasks still run at `deadline`. A task that asks does not wait for itself.
  bool wait_idle(Deadline deadline);

 private:
  /// Belongs to the threads, too, which may live longer than the object.
  struct Shared {
    std::mutex mutex;
    std::condition_variable changed;
    std::deque<std::function<void()>> tasks;
    std::size_t waiting = 0;  ///< threads
    std::size_t running = 0;  ///< tasks that have begun
    bool ended = false;
  };
  static void serve(const std::shared_ptr<Shared>& shared);

  const std::shared_ptr<Shared> shared_;
};

}  // namespace bimetal::c10d

#pragma once
// A thread that runs tasks one after the other, in order of arrival.

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>

namespace bimetal::comm {

/// Thread-safe. Tasks must not throw.
class Executor {
 public:
  Executor() : thread_([this] { run(); }) {}
  /// Runs what is still queued, then ends the thread.
  ~Executor();
  Executor(const Executor&) = delete;
  Executor& operator=(const Executor&) = delete;

  void push(std::function<void()> task);

 private:
  void run();

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> tasks_;
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace bimetal::comm

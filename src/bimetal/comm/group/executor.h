#pragma once
// A thread that runs tasks one after the other, in order of arrival.

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <thread>
#include <utility>

#include "bimetal/base/deadline.h"

namespace bimetal::comm {

// Runs functions at points in time, on one thread of its own. It ends every operation at its
// deadline, even if nobody waits for it.

/// Thread-safe. The thread starts with the first alarm.
class Timer {
 public:
  /// Names an alarm; a default one names none.
  struct Alarm {
    Deadline::Clock::time_point time{};
    std::uint64_t number = 0;
    friend auto operator<=>(const Alarm&, const Alarm&) = default;
  };

  Timer() = default;
  ~Timer() { stop(); }
  Timer(const Timer&) = delete;
  Timer& operator=(const Timer&) = delete;

  /// `action` runs once, at `when` or soon after; it must not block for long and must not throw.
  Alarm at(Deadline when, std::function<void()> action);

  /// Takes an alarm back if it has not begun to run; does not wait for one that has.
  void cancel(const Alarm& alarm);

  /// Drops every alarm and ends the thread. Alarms set later never run.
  void stop();

 private:
  void run();

  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<Alarm, std::function<void()>> alarms_;
  std::uint64_t last_number_ = 0;
  Deadline::Clock::time_point looks_again_ = Deadline::Clock::time_point::max();
  bool stopped_ = false;
  std::thread thread_;
};

/// Thread-safe. Tasks must not throw.
class Executor {
 public:
  Executor() : thread_([this] { run(); }) {}
  /// Runs the queued work, then ends the thread.
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

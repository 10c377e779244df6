#pragma once
// The record of each step for the copy of server 0, so that the job's report has no gap when it
// takes over: a StepEvent as a message.
//
// Events of a server's thread, on their way to the main thread. Thread-safe.

#include <condition_variable>
#include <deque>
#include <mutex>
#include <optional>
#include <span>
#include <utility>

#include "bimetal/base/deadline.h"
#include "bimetal/parallel/server/coordinator.h"

namespace bimetal::parallel::server {

Body encode(const StepEvent& step);

/// Error(CorruptData) for anything that does not fit.
StepEvent decode_step_record(std::span<const std::byte> body);

class EventQueue {
 public:
  void push(Event event) {
    const std::scoped_lock lock(mutex_);
    if (auto* failed = std::get_if<FailedEvent>(&event)) {
      if (!failure_) failure_ = failed->error;
    } else {
      events_.push_back(std::move(event));
    }
    changed_.notify_all();
  }

  /// The oldest event, or nothing by the deadline. Throws the first failure once no event is left.
  std::optional<Event> pop(Deadline deadline) {
    std::unique_lock lock(mutex_);
    changed_.wait_until(lock, deadline.time(), [&] { return !events_.empty() || failure_; });
    if (!events_.empty()) {
      Event event = std::move(events_.front());
      events_.pop_front();
      return event;
    }
    if (failure_) throw *failure_;
    return std::nullopt;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Event> events_;
  std::optional<Error> failure_;
};

}  // namespace bimetal::parallel::server

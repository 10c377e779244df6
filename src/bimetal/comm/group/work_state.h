#pragma once
// The state of an operation, to which Work handles refer.

#include <atomic>
#include <condition_variable>
#include <exception>
#include <functional>
#include <mutex>
#include <optional>
#include <vector>

#include "bimetal/base/deadline.h"
#include "bimetal/comm/failure.h"
#include "bimetal/comm/work.h"

namespace bimetal::comm {

/// Goes once from running to done. Thread-safe.
struct Work::State {
 public:
  using Callback = std::function<void(std::exception_ptr)>;

  /// Ends the operation, wakes the waiters, then runs the callbacks. Later calls do nothing.
  void finish(std::optional<Failure> failure);

  void wait() const;
  bool wait_until(Deadline deadline) const;
  bool done() const;
  std::exception_ptr error() const;
  void on_done(Callback callback);

  /// Before it is done.
  void came_from(int rank) { sender_ = rank; }
  int sender() const { return sender_; }

 private:
  std::exception_ptr exception() const { return failure_ ? failure_->to_exception() : nullptr; }

  mutable std::mutex mutex_;
  mutable std::condition_variable changed_;
  bool done_ = false;
  std::atomic<int> sender_{-1};
  std::optional<Failure> failure_;  // written before done_ is set, constant afterwards
  std::vector<Callback> callbacks_;
};

}  // namespace bimetal::comm

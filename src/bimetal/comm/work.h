#pragma once
// The handle of an operation in flight.

#include <exception>
#include <functional>
#include <memory>
#include <span>

#include "bimetal/base/deadline.h"

namespace bimetal::comm {

/// A cheap shared handle; copies refer to the same operation. Thread-safe. Dropping every handle
/// does not cancel the operation: its buffers must stay valid until it is done.
class Work {
 public:
  struct State;
  Work() = default;  ///< no operation: done, wait() returns at once
  /// A handle on a call under way.
  explicit Work(std::shared_ptr<State> state) : state_(std::move(state)) {}

  /// Blocks until done; rethrows the operation's error. Ends by the operation's own deadline.
  void wait() const;

  /// False if the operation is still running at `deadline`.
  bool wait_until(Deadline deadline) const;

  bool done() const;  ///< whether it has ended, well or not; does not block

  /// nullptr while running and after success.
  std::exception_ptr error() const;

  /// The sender of a message received from any rank, as a rank of the group. -1 before that, and
  /// for all other calls.
  int sender() const;

  /// Runs `callback` once when done: at once if it is, else on one of the group's threads, where it
  /// must not throw and must not block (as dropping a group's last handle does). Other calls may
  /// be made from it.
  void on_done(std::function<void(std::exception_ptr)> callback) const;

 private:
  std::shared_ptr<State> state_;
};

/// Blocks until all are done, so that nothing uses their buffers any more; then rethrows the error
/// of the first in the list that has one.
void wait_for_all(std::span<const Work> works);

}  // namespace bimetal::comm

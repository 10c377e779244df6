#pragma once
// Why a group or an operation ended, as plain data. An Error is built from it anew wherever it is
// thrown, so that no two threads ever share an exception object.
//
// The payload of an Abort frame, by which others learn it (docs/protocol.md has the layout), and
// the state of an operation, to which Work handles refer.

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "bimetal/base/deadline.h"
#include "bimetal/base/error.h"
#include "bimetal/comm/work.h"
#include "bimetal/net/frame.h"

namespace bimetal::comm {

struct Failure {
  ErrorCode code = ErrorCode::Internal;
  std::string message;
  std::optional<int> rank;  ///< world rank to blame, where there is one

  Error to_error() const { return Error(code, message, rank); }
  std::exception_ptr to_exception() const { return std::make_exception_ptr(to_error()); }

  friend bool operator==(const Failure&, const Failure&) = default;
};

/// No Abort payload is longer; longer texts are cut.
inline constexpr std::size_t kMaxAbortBytes = 16384;

/// The group has failed for this reason, which its receiver takes over; or, without one, the
/// sender has left the group in good order and will send nothing more in it.
struct AbortMessage {
  std::optional<Failure> failure;
};

std::vector<std::byte> encode(const AbortMessage& message);

/// The header of the frame that carries an abort message.
net::FrameHeader abort_header(std::uint32_t group);

/// Throws Error(CorruptData).
AbortMessage decode_abort(std::span<const std::byte> payload);

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

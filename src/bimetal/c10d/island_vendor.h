#pragma once
// How the ranks of an island call their vendor library, for the file that implements islands.

#include <condition_variable>
#include <cstdint>
#include <exception>
#include <mutex>
#include <optional>
#include <utility>

#include "bimetal/base/deadline.h"
#include "bimetal/base/error.h"
#include "bimetal/c10d/island.h"
#include "bimetal/comm/failure.h"

namespace bimetal::c10d {

/// The vendor library, and whose turn it is. All members make their calls in one order, whatever
/// threads these come from: two that wait for each other's next call would occupy their cards.
class Island::VendorCalls {
 public:
  explicit VendorCalls(BackendPtr library) : library_(std::move(library)) {}

  /// The first member's to give, once all have come to a call. The others hear it by the fabric.
  std::int64_t next_turn() {
    const std::lock_guard lock(mutex_);
    return given_++;
  }

  /// Calls `call` when it is its turn. Errors: those of `call`, behind which the island is to
  /// fail(); that of an earlier fail(); Timeout.
  template <typename Call>
  void in_turn(std::int64_t turn, Deadline deadline, const Call& call) {
    wait_for(turn, deadline);
    call(*library_);
    const std::lock_guard lock(mutex_);
    ++turn_;
    changed_.notify_all();
  }

  /// Whatever waits for its turn, or in the library, ends. The first reason counts.
  void fail(const comm::Failure& failure) {
    {
      const std::lock_guard lock(mutex_);
      if (failure_) return;
      failure_ = failure;
      changed_.notify_all();
    }
    try {
      library_->abort();
    } catch (const std::exception&) {
      // It has failed already; the first reason counts.
    }
  }

 private:
  void wait_for(std::int64_t turn, Deadline deadline) {
    std::unique_lock lock(mutex_);
    const auto there = [&] { return turn_ == turn || failure_; };
    if (!changed_.wait_until(lock, deadline.time(), there)) {
      throw Error(ErrorCode::Timeout,
                  "an earlier call of the island's vendor library has not ended in time");
    }
    if (failure_) throw failure_->to_error();
  }

  const BackendPtr library_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::int64_t given_ = 0, turn_ = 0;
  std::optional<comm::Failure> failure_;
};

}  // namespace bimetal::c10d

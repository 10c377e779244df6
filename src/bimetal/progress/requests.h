#pragma once
// Users' requests to a run while it trains: a checkpoint now, its end, that a worker leaves, a
// profile of the next steps. A watching user asks, the leading rank takes the request between
// steps, and all ranks agree on it with the step's figures.

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <mutex>
#include <utility>

namespace bimetal::progress {

struct Asked {
  bool save = false, stop = false;
  int leave = -1;            ///< number of a worker; -1: none
  int profile = 0;           ///< steps
  std::uint64_t sample = 0;  ///< draws one that the model is to be tried with; 0: none
};

/// May be used from any thread.
class Requests {
 public:
  static constexpr int kMostSteps = 1000;  ///< of a profile

  /// A request that has not been taken yet is joined with it. If two workers are asked to leave,
  /// the latter one does.
  void ask(const Asked& more) {
    const std::scoped_lock lock(mutex_);
    asked_.save |= more.save;
    asked_.stop |= more.stop;
    if (more.leave >= 0) asked_.leave = more.leave;
    if (more.sample != 0) asked_.sample = more.sample;
    asked_.profile = std::max(asked_.profile, std::min(more.profile, kMostSteps));
    any_ = true;
  }

  /// Each is given once. Costs a step nothing where nobody asks.
  Asked take() {
    if (!any_.load(std::memory_order_relaxed)) return {};
    const std::scoped_lock lock(mutex_);
    any_ = false;
    return std::exchange(asked_, {});
  }

 private:
  std::mutex mutex_;
  std::atomic<bool> any_{false};
  Asked asked_;
};

}  // namespace bimetal::progress

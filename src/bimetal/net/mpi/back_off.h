#pragma once
// How long a thread that can only poll may sleep before it polls again.

#include <algorithm>
#include <chrono>

namespace bimetal::net::mpi {

/// MPI cannot wake a sleeping thread when a message comes. So: ask without a pause at first (giving
/// way in between would be worse: on a busy machine a thread that yields waits for the others' time
/// slices to end, one that sleeps is woken before them), then sleep for an eighth of the time that
/// nothing has happened, which makes an answer late by an eighth at most, and 1 ms at most, which
/// keeps an idle rank below a hundredth of a core.
class BackOff {
 public:
  using Clock = std::chrono::steady_clock;

  static constexpr std::chrono::microseconds kAtOnce{50};
  static constexpr std::chrono::microseconds kShortest{10};
  static constexpr std::chrono::microseconds kLongest{1000};

  /// Something has happened.
  void reset(Clock::time_point now = Clock::now()) { since_ = now; }

  /// How long to sleep now; 0: not at all.
  std::chrono::microseconds pause(Clock::time_point now = Clock::now()) const {
    const auto idle = std::chrono::duration_cast<std::chrono::microseconds>(now - since_);
    if (idle < kAtOnce) return std::chrono::microseconds(0);
    return std::clamp(idle / 8, kShortest, kLongest);
  }

 private:
  Clock::time_point since_ = Clock::now();
};

}  // namespace bimetal::net::mpi

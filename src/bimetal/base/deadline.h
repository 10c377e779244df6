#pragma once
// A point on the monotonic clock by which a blocking call must have ended. It is passed by value
// down a call chain, so that nested waits share one budget and do not add up their timeouts.

#include <algorithm>
#include <chrono>
#include <cmath>

namespace bimetal {

/// Seconds as people write them, in options and job files.
inline std::chrono::milliseconds milliseconds_of(double seconds) {
  return std::chrono::milliseconds(std::llround(seconds * 1000));
}

/// A point in time until which something may take. A value; thread-safe.
class Deadline {
 public:
  using Clock = std::chrono::steady_clock;  ///< monotonic

  /// So much from now on.
  static Deadline after(std::chrono::nanoseconds budget) {
    return Deadline(Clock::now() + std::chrono::duration_cast<Clock::duration>(budget));
  }
  static Deadline at(Clock::time_point when) { return Deadline(when); }  ///< at that moment

  Clock::time_point time() const noexcept { return when_; }        ///< the moment
  bool expired() const noexcept { return Clock::now() >= when_; }  ///< whether it has come

  /// Time left, never negative.
  Clock::duration remaining() const noexcept {
    return std::max(when_ - Clock::now(), Clock::duration::zero());
  }

  /// The earlier of the two.
  friend Deadline min(Deadline a, Deadline b) noexcept { return a.when_ < b.when_ ? a : b; }

 private:
  explicit Deadline(Clock::time_point when) : when_(when) {}
  Clock::time_point when_;
};

// Seconds since construction, on the monotonic clock.

/// Seconds since it was made. A value.
class Stopwatch {
 public:
  /// Since then.
  double seconds() const { return std::chrono::duration<double>(Clock::now() - start_).count(); }

 private:
  using Clock = std::chrono::steady_clock;
  Clock::time_point start_ = Clock::now();
};

}  // namespace bimetal

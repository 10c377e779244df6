#pragma once
// Seconds since construction, on the monotonic clock.

#include <chrono>

namespace bimetal {

class Stopwatch {
 public:
  double seconds() const { return std::chrono::duration<double>(Clock::now() - start_).count(); }

 private:
  using Clock = std::chrono::steady_clock;
  Clock::time_point start_ = Clock::now();
};

}  // namespace bimetal

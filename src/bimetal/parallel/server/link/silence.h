#pragma once
// The time since the other side of a connection was last heard. It is counted in ticks of this
// process, because a process that was stopped itself has heard nothing either.

#include <chrono>

namespace bimetal::parallel::server {

class Silence {
 public:
  /// To be called once in each `tick`. `heard`: when something has last arrived.
  std::chrono::milliseconds after(std::chrono::milliseconds tick,
                                  std::chrono::steady_clock::time_point heard) {
    so_far_ = heard == heard_ ? so_far_ + tick : std::chrono::milliseconds(0);
    heard_ = heard;
    return so_far_;
  }

 private:
  std::chrono::steady_clock::time_point heard_{};
  std::chrono::milliseconds so_far_{0};
};

}  // namespace bimetal::parallel::server

#pragma once
// The clock on the wall, for those who compare with other machines.

#include <chrono>

namespace bimetal::monitor {

/// Seconds since 1970.
inline double unix_time() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

}  // namespace bimetal::monitor

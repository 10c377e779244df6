#pragma once
// The pages of a monitor.

namespace bimetal::monitor {

inline constexpr const char* kStatusPath = "/status";    ///< for `bimetal top`: status.h
inline constexpr const char* kMetricsPath = "/metrics";  ///< for Prometheus

}  // namespace bimetal::monitor

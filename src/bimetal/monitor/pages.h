#pragma once
// The pages of a monitor, and the secret by which they are read from beyond loopback.

#include "bimetal/net/token.h"

namespace bimetal::monitor {

inline constexpr const char* kStatusPath = "/status";    ///< for `bimetal top`: status.h
inline constexpr const char* kMetricsPath = "/metrics";  ///< for Prometheus

/// HTTP sends a bearer token as it is, and whoever listens on the network could join the job with
/// it. So the monitor has a token of its own, from which the job's cannot be found: HMAC-SHA256 of
/// "bimetal monitor" under the job's token, as 64 hexadecimal digits. Empty for an empty one.
net::Token monitor_token(const net::Token& job);

}  // namespace bimetal::monitor

#pragma once
// The pages of a monitor, the secret by which they are read from beyond loopback, and asking for
// one.

#include <string>
#include <string_view>

#include "bimetal/base/deadline.h"
#include "bimetal/net/endpoint.h"
#include "bimetal/net/token.h"

namespace bimetal::monitor {

inline constexpr const char* kStatusPath = "/status";    ///< for `bimetal top`: status.h
inline constexpr const char* kMetricsPath = "/metrics";  ///< for Prometheus

/// HTTP sends a bearer token as it is, and a listener on the network could join the job with it. So
/// the monitor has a token of its own, from which the job's cannot be found: HMAC-SHA256 of
/// "bimetal monitor" under the job's token, as 64 hexadecimal digits. Empty for an empty one.
net::Token monitor_token(const net::Token& job);

/// The body of the page at `path`. Errors: PeerLost if nothing listens there, or if it hangs up in
/// the middle; Timeout if nobody answers by the deadline; Unauthorized; ProtocolMismatch for
/// servers that are no monitor. Blocks until the deadline at the longest.
std::string fetch_page(const net::Endpoint& monitor, std::string_view path, const net::Token& token,
                       Deadline deadline);

}  // namespace bimetal::monitor

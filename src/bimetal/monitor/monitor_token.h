#pragma once
// The secret by which a monitor is read from beyond loopback.

#include "bimetal/net/token.h"

namespace bimetal::monitor {

/// HTTP sends a bearer token as it is, and whoever listens on the network could join the job with
/// it. So the monitor has a token of its own, from which the job's cannot be found: HMAC-SHA256 of
/// "bimetal monitor" under the job's token, as 64 hexadecimal digits. Empty for an empty one.
net::Token monitor_token(const net::Token& job);

}  // namespace bimetal::monitor

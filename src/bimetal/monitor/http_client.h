#pragma once
// Asks a monitor for a page.

#include <string>
#include <string_view>

#include "bimetal/base/deadline.h"
#include "bimetal/net/endpoint.h"
#include "bimetal/net/token.h"

namespace bimetal::monitor {

/// The body of the page at `path`. Errors: PeerLost if nothing listens there, or if it hangs up in
/// the middle; Timeout if nobody answers by the deadline; Unauthorized; ProtocolMismatch for what
/// is no monitor. Blocks until the deadline at the longest.
std::string fetch_page(const net::Endpoint& monitor, std::string_view path, const net::Token& token,
                       Deadline deadline);

}  // namespace bimetal::monitor

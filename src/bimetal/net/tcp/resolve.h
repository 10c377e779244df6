#pragma once
// Resolves names to addresses, without ever waiting longer than asked. The system's resolver cannot
// be interrupted, so it runs on a thread for which nobody waits.

#include <asio/awaitable.hpp>
#include <asio/ip/tcp.hpp>
#include <vector>

#include "bimetal/base/deadline.h"
#include "bimetal/net/endpoint.h"

namespace bimetal::net {

/// The addresses of `endpoint`, at least one. Throws std::system_error where the name is unknown
/// or the deadline passes; Error(InvalidArgument) for a link-local IPv6 address that does not say
/// on which of this machine's interfaces (fe80::1%eth0), for it means nothing without.
asio::awaitable<std::vector<asio::ip::tcp::endpoint>> resolve(Endpoint endpoint, Deadline deadline);

/// The same for a caller that may block. Throws Error(System) naming the host, and the same
/// InvalidArgument.
asio::ip::tcp::endpoint resolve_to_listen(const Endpoint& endpoint, Deadline deadline);

}  // namespace bimetal::net

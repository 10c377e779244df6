#pragma once
// Names to addresses, without ever waiting longer than asked: the system's resolver cannot be
// interrupted, so it works on a thread that nobody waits for.

#include <asio/awaitable.hpp>
#include <asio/ip/tcp.hpp>
#include <vector>

#include "bimetal/base/deadline.h"
#include "bimetal/net/endpoint.h"

namespace bimetal::net {

/// The addresses of `endpoint`, at least one. Throws std::system_error where the name is unknown
/// or the deadline passes.
asio::awaitable<std::vector<asio::ip::tcp::endpoint>> resolve(Endpoint endpoint, Deadline deadline);

/// The same for a caller that may block. Throws Error(System) naming the host.
asio::ip::tcp::endpoint resolve_to_listen(const Endpoint& endpoint, Deadline deadline);

}  // namespace bimetal::net

#pragma once
// Connects to a Bimetal server at one of its addresses and authenticates. It tries again until a
// deadline, because the other side may start later, or be restarted.

#include <asio/awaitable.hpp>
#include <asio/ip/tcp.hpp>
#include <functional>
#include <string>
#include <vector>

#include "bimetal/base/deadline.h"
#include "bimetal/net/endpoint.h"
#include "bimetal/net/handshake.h"

namespace bimetal::net {

// Resolves names to addresses, without ever waiting longer than asked. The system's resolver cannot
// be interrupted, so it runs on a thread for which nobody waits.

/// The addresses of `endpoint`, at least one. Throws std::system_error where the name is unknown
/// or the deadline passes; Error(InvalidArgument) for a link-local IPv6 address that does not say
/// on which of this machine's interfaces (fe80::1%eth0), for it means nothing without.
asio::awaitable<std::vector<asio::ip::tcp::endpoint>> resolve(Endpoint endpoint, Deadline deadline);

/// The same for a caller that may block. Throws Error(System) naming the host, and the same
/// InvalidArgument.
asio::ip::tcp::endpoint resolve_to_listen(const Endpoint& endpoint, Deadline deadline);

struct DialRequest {
  std::vector<Endpoint> addresses;  ///< of the server, the one to prefer first
  std::string name;  ///< of the server, for messages: "rank 0 (mac.local, 10.0.0.2:4711)"
  Token token;
  Hello hello;  ///< without nonce
  Deadline deadline;
  /// Told why a try failed, when that differs from the try before. May be empty. What it throws
  /// ends the tries.
  std::function<void(const std::string& trouble)> on_trouble{};
  /// Told each time that the server's system has answered. May be empty.
  std::function<void()> on_answer{};
};

struct DialedConnection {
  asio::ip::tcp::socket socket;
  SessionKeys keys;
};

/// Errors: Timeout, which says what failed last at each address; at once Unauthorized,
/// ProtocolMismatch, InvalidArgument (see authenticate_as_client). Where a server has several
/// addresses, one of them may belong to somebody else in this part of the network: then all that
/// answers must agree that it is of no use before anything but Unauthorized is thrown.
asio::awaitable<DialedConnection> dial(DialRequest request);

}  // namespace bimetal::net

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

struct DialRequest {
  std::vector<Endpoint> addresses;  ///< of the server, the one to prefer first
  std::string name;  ///< of the server, for messages: "rank 0 (mac.local, 10.0.0.2:4711)"
  Token token;
  Hello hello;  ///< without nonce
  Deadline deadline;
  /// Told why a try failed, when that differs from the try before. May be empty. What it throws
  /// ends the tries.
  std::function<void(const std::string& trouble)> on_trouble{};
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

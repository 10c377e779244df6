#pragma once
// Connects to a Bimetal server and authenticates, trying again until a deadline: the other side may
// start later, or be restarted.

#include <asio/awaitable.hpp>
#include <asio/ip/tcp.hpp>
#include <functional>
#include <string>

#include "bimetal/base/deadline.h"
#include "bimetal/net/endpoint.h"
#include "bimetal/net/handshake.h"

namespace bimetal::net {

struct DialRequest {
  Endpoint server;
  std::string name;  ///< of the server, for messages: "rank 0 (mac.local, 10.0.0.2:4711)"
  Token token;
  Hello hello;  ///< without nonce
  Deadline deadline;
  /// Told why a try failed, when that differs from the try before. May be empty.
  std::function<void(const std::string& trouble)> on_trouble{};
};

struct DialedConnection {
  asio::ip::tcp::socket socket;
  SessionKeys keys;
};

/// Errors: Timeout, which says what failed last; at once Unauthorized, ProtocolMismatch,
/// InvalidArgument (see authenticate_as_client).
asio::awaitable<DialedConnection> dial(DialRequest request);

}  // namespace bimetal::net

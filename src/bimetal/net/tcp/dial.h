#pragma once
// Connects to a Bimetal server at one of its addresses and authenticates. It tries again until a
// deadline, because the other side may start later, or be restarted.
//
// Connects to a server that has several addresses, some of which may be unreachable. The attempts
// start one after the other, a little apart, and the first that succeeds is used (Happy Eyeballs
// version 2, RFC 8305, section 5).

#include <asio/awaitable.hpp>
#include <asio/ip/tcp.hpp>
#include <functional>
#include <memory>
#include <optional>
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
  /// Told why a try failed, when that differs from the try before. May be empty. An exception from
  /// it ends the tries.
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
/// addresses, one of them may belong to somebody else in this part of the network. Then any error
/// but Unauthorized is thrown only if all servers that answer agree on being of no use.
asio::awaitable<DialedConnection> dial(DialRequest request);

/// For coroutines on an io_context that one thread runs. A connection that has not been taken is
/// closed in the end.
class ConnectRace {
 public:
  struct Winner {
    asio::ip::tcp::endpoint address;
    asio::ip::tcp::socket socket;
  };

  /// `addresses`: the one to prefer first.
  ConnectRace(asio::any_io_executor executor, std::vector<asio::ip::tcp::endpoint> addresses);
  ~ConnectRace();
  ConnectRace(const ConnectRace&) = delete;
  ConnectRace& operator=(const ConnectRace&) = delete;

  /// The next connection that stands. Nothing once every attempt has failed or gone unanswered for
  /// some seconds, or at the deadline. Called again where a winner turned out to be of no use.
  asio::awaitable<std::optional<Winner>> next(Deadline deadline);

  /// Notes why a winner was of no use, for troubles().
  void reject(const asio::ip::tcp::endpoint& address, std::string why);

  /// The outcome at each address: "Connection refused", or with several addresses "10.0.0.2:29500:
  /// Connection refused; [fd00::2]:29500: no answer".
  std::string troubles() const;

 private:
  struct State;
  std::shared_ptr<State> state_;
};

}  // namespace bimetal::net

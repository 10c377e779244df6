#pragma once
// Accepts connections, lets each prove the token (many at once, each against its own short
// deadline), and hands over those that did. Strangers are refused and logged; none of them delays
// another connection.

#include <asio/io_context.hpp>
#include <asio/ip/tcp.hpp>
#include <chrono>
#include <cstddef>
#include <functional>
#include <list>
#include <memory>
#include <string>

#include "bimetal/net/endpoint.h"
#include "bimetal/net/tcp/authenticate.h"

namespace bimetal::net {

/// How long an accepted connection may take to prove the token.
inline constexpr std::chrono::milliseconds kHandshakeTimeout{5000};

struct ListenerOptions {
  Token token;
  Service service = Service::Mesh;
  std::chrono::milliseconds handshake_timeout = kHandshakeTimeout;
  Admit admit;  ///< judges clients that have proved the token
  std::function<void(asio::ip::tcp::socket, const AuthenticatedClient&)> on_connection;
  /// Told of a client of this release that does not know the token. May be left out.
  std::function<void(const std::string& remote)> on_wrong_token = {};
};

/// Everything but the constructor happens on the thread that runs `io`, callbacks included.
class Listener {
 public:
  /// Binds and listens. Errors: Unauthorized (require_token_for), System.
  Listener(asio::io_context& io, const Endpoint& listen, ListenerOptions options);
  ~Listener();
  Listener(const Listener&) = delete;
  Listener& operator=(const Listener&) = delete;

  Endpoint endpoint() const;
  void start();

  /// Stops listening and drops connections that have not proved the token yet. No callback is
  /// called afterwards.
  void stop();

 private:
  struct State;
  std::shared_ptr<State> state_;
};

// Connections that have not authenticated yet. Their number is limited, so that a flood of
// strangers costs bounded memory and descriptors. A flood pushes out its own connections: a
// connection keeps its place if there are few from its address.

/// For one thread.
class Newcomers {
 public:
  using Socket = std::shared_ptr<asio::ip::tcp::socket>;

  explicit Newcomers(std::size_t room) : room_(room) {}

  /// Takes one in. Without room the oldest of the address that has the most is closed first. An
  /// IPv6 network of 64 bits counts as one address: a single machine may have all of it.
  Socket admit(asio::ip::tcp::socket socket);

  /// The client has given its proof, or the connection has ended.
  void remove(const Socket& socket);

  void close_all();

 private:
  struct Newcomer {
    std::string from;
    Socket socket;
  };
  void drop_one_of_the_most();

  const std::size_t room_;
  std::list<Newcomer> here_;  ///< the oldest first
};

}  // namespace bimetal::net

#pragma once
// Accepts connections, lets each prove the token (many at once, each against its own short
// deadline), and hands over those that did. Strangers are refused and logged; none of them delays
// another connection.

#include <asio/io_context.hpp>
#include <asio/ip/tcp.hpp>
#include <chrono>
#include <functional>
#include <memory>

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

}  // namespace bimetal::net

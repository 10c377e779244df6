#pragma once
// Runs the handshake (net/handshake.h) over a connected socket. The caller limits the time with a
// Watchdog.

#include <asio/awaitable.hpp>
#include <asio/ip/tcp.hpp>
#include <functional>
#include <optional>
#include <string>

#include "bimetal/base/error.h"
#include "bimetal/net/handshake.h"

namespace bimetal::net {

/// The client's side. `hello` needs no nonce; `server` names the other side in messages. Throws
/// Error(Unauthorized, ProtocolMismatch or InvalidArgument) when the server refuses or is no
/// Bimetal, std::system_error when the connection fails (worth another try).
asio::awaitable<SessionKeys> authenticate_as_client(asio::ip::tcp::socket& socket,
                                                    const HandshakeKey& key, Hello hello,
                                                    std::string server);

/// For the last word to a client: closing at once, with its bytes unread, would reset the
/// connection and might destroy that word on its way. Reads a little, and not for ever.
asio::awaitable<void> wait_for_hang_up(asio::ip::tcp::socket& socket);

/// Whether a client that has proved the token is welcome. Called after the proof only.
using Admit = std::function<std::optional<Refusal>(const Hello&)>;

struct AuthenticatedClient {
  Hello hello;
  SessionKeys keys;
};

/// A client of this release asked for another service than the port's, and has been told so. No
/// reason for alarm: those that ask for predictions look for a port that way.
struct AnotherService : Error {
  explicit AnotherService(const std::string& message)
      : Error(ErrorCode::ProtocolMismatch, message) {}
};

/// A client of this release that could not prove the token, and has been told so.
struct WrongToken : Error {
  explicit WrongToken(const Error& error) : Error(error) {}
};

/// The server's side. A stranger or an unwelcome client ends in an Error, whose message says who
/// came and why not; where the client speaks the handshake it has been told with a Reject.
asio::awaitable<AuthenticatedClient> authenticate_as_server(asio::ip::tcp::socket& socket,
                                                            const HandshakeKey& key,
                                                            Service service, const Admit& admit);

}  // namespace bimetal::net

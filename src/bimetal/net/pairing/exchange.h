#pragma once
// Messages of pairing on a connected socket. The caller limits the time with a Watchdog.

#include <asio/awaitable.hpp>
#include <asio/ip/tcp.hpp>
#include <span>
#include <string_view>

#include "bimetal/net/pairing/message.h"

namespace bimetal::net::pairing {

struct Received {
  Preamble preamble;
  Body body;
  Kind kind() const { return static_cast<Kind>(preamble.message); }
};

/// The next message. A Reject, and messages of another protocol version or for another service,
/// come without a body. Error(CorruptData); std::system_error where the connection ends.
asio::awaitable<Received> receive(asio::ip::tcp::socket& socket);

/// Error(ProtocolMismatch) for another version, and for peers other than Bimetal; `who` is the
/// other side.
void require_bimetal(const Preamble& preamble, std::string_view who);

asio::awaitable<void> send(asio::ip::tcp::socket& socket, Kind kind, Body body);

}  // namespace bimetal::net::pairing

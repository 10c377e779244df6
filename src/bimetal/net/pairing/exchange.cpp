#include "bimetal/net/pairing/exchange.h"

#include <fmt/format.h>

#include <asio/read.hpp>
#include <asio/use_awaitable.hpp>
#include <asio/write.hpp>

#include "bimetal/base/error.h"

namespace bimetal::net::pairing {

asio::awaitable<Received> receive(asio::ip::tcp::socket& socket) {
  Head head;
  co_await asio::async_read(socket, asio::buffer(head.data(), kPreambleBytes), asio::use_awaitable);
  Received received{decode_preamble(std::span(head).first<kPreambleBytes>()), {}};
  const auto& preamble = received.preamble;
  if (preamble.magic != kHandshakeMagic || preamble.version != kProtocolVersion ||
      preamble.service != Service::Pairing || received.kind() == Kind::Reject) {
    co_return received;
  }
  co_await asio::async_read(socket,
                            asio::buffer(head.data() + kPreambleBytes, kHeadBytes - kPreambleBytes),
                            asio::use_awaitable);
  received.body.resize(body_bytes(head));
  co_await asio::async_read(socket, asio::buffer(received.body), asio::use_awaitable);
  co_return received;
}

void require_bimetal(const Preamble& preamble, std::string_view who) {
  if (preamble.magic != kHandshakeMagic) {
    throw Error(ErrorCode::ProtocolMismatch,
                fmt::format("{} is not Bimetal: its first bytes are something else's; check the "
                            "address and port",
                            who));
  }
  if (preamble.version == kProtocolVersion) return;
  throw Error(ErrorCode::ProtocolMismatch,
              fmt::format("{} speaks protocol version {}, this side version {}; install the same "
                          "release of Bimetal on both",
                          who, preamble.version, kProtocolVersion));
}

asio::awaitable<void> send(asio::ip::tcp::socket& socket, Kind kind, Body body) {
  const auto message = encode(kind, body);
  co_await asio::async_write(socket, asio::buffer(message), asio::use_awaitable);
}

}  // namespace bimetal::net::pairing

#include "bimetal/serving/wire.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "bimetal/net/tcp/sockets.h"

namespace bimetal::serving {
namespace {

constexpr std::size_t kReadAtOnce = std::size_t{64} << 10;
// Beyond it the kernel gives a connection up of which nothing is acknowledged.
constexpr std::chrono::milliseconds kPathTimeout{3000};

}  // namespace

Wire::Wire(asio::ip::tcp::socket connected, const net::SessionKeys& keys, Side side)
    : socket(std::move(connected)),
      incoming(side == Side::client ? keys.server_to_client : keys.client_to_server),
      reader(socket, side == Side::client ? keys.cipher_to_client() : keys.cipher_to_server()),
      writer(socket, side == Side::client ? keys.client_to_server : keys.server_to_client,
             side == Side::client ? keys.cipher_to_server() : keys.cipher_to_client(), bytes_sent),
      heard(std::chrono::steady_clock::now()) {
  net::tune_for_frames(socket, kPathTimeout);
}

asio::awaitable<net::FrameHeader> Wire::next_header() {
  net::EncodedHeader bytes;
  if (const auto error = co_await reader.read(bytes)) throw std::system_error(error);
  const auto header = net::decode_header(bytes, incoming);
  heard = std::chrono::steady_clock::now();
  co_return header;
}

asio::awaitable<std::error_code> Wire::receive(std::span<std::byte> into) {
  while (!into.empty()) {
    const auto piece = into.first(std::min(into.size(), kReadAtOnce));
    if (const auto error = co_await reader.read(piece)) co_return error;
    heard = std::chrono::steady_clock::now();
    into = into.subspan(piece.size());
  }
  co_return std::error_code();
}

void Wire::close() {
  std::error_code ignored;
  socket.close(ignored);
  writer.fail(std::make_exception_ptr(Error(ErrorCode::Aborted, "the connection was closed")));
}

}  // namespace bimetal::serving

#pragma once
// An authenticated connection between a client and a server of predictions, as both sides have it:
// frames out by a queue, frames in one at a time. For coroutines on one thread. Private to
// session.cpp and client.cpp.

#include <asio/awaitable.hpp>
#include <asio/ip/tcp.hpp>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <span>
#include <system_error>

#include "bimetal/net/handshake.h"
#include "bimetal/net/tcp/byte_stream.h"
#include "bimetal/net/tcp/frame_writer.h"
#include "bimetal/serving/message.h"

namespace bimetal::serving {

struct Wire {
  enum class Side { client, server };

  Wire(asio::ip::tcp::socket connected, const net::SessionKeys& keys, Side side);

  /// The next frame's header. Throws std::system_error where the connection ends, Error for bytes
  /// that are no frame.
  asio::awaitable<net::FrameHeader> next_header();

  /// A frame's payload, in pieces: a slow peer is heard of meanwhile, one that has stopped is not.
  asio::awaitable<std::error_code> receive(std::span<std::byte> into);

  /// Closes the socket; what waits on it ends.
  void close();

  asio::ip::tcp::socket socket;
  net::Seal incoming;
  std::atomic<std::uint64_t> bytes_sent{0};
  net::ByteReader reader;
  net::FrameWriter writer;
  std::chrono::steady_clock::time_point heard;  ///< when a frame or a part of one has last come
};

}  // namespace bimetal::serving

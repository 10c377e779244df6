#pragma once
// Store messages waiting to go out on one connection, in order, written by one coroutine.
// Used on the thread that runs the connection's io_context.

#include <array>
#include <asio/awaitable.hpp>
#include <asio/ip/tcp.hpp>
#include <asio/redirect_error.hpp>
#include <asio/steady_timer.hpp>
#include <asio/use_awaitable.hpp>
#include <deque>

#include "bimetal/net/tcp/byte_stream.h"
#include "bimetal/rendezvous/store_message.h"

namespace bimetal::rendezvous {

class Outbox {
 public:
  /// `cipher`: for an encrypted connection.
  Outbox(asio::ip::tcp::socket& socket, const net::SessionKey& key,
         const std::optional<net::noise::CipherState>& cipher)
      : writer_(socket, cipher),
        seal_(key),
        filled_(socket.get_executor(), asio::steady_timer::time_point::max()),
        drained_(socket.get_executor(), asio::steady_timer::time_point::max()) {}

  void push(StoreMessage message) {
    bytes_ += message.value->size();
    messages_.push_back(std::move(message));
    filled_.cancel();
  }

  /// Writes until close() or a failed write.
  asio::awaitable<void> run() {
    std::error_code error;
    while (!closed_ && !error) {
      if (messages_.empty()) {
        std::error_code woken;
        co_await filled_.async_wait(asio::redirect_error(asio::use_awaitable, woken));
        continue;
      }
      const StoreMessage message = std::move(messages_.front());
      messages_.pop_front();
      const StoreHeader header = encode_store_header(message, seal_);
      const std::array<asio::const_buffer, 3> buffers{
          asio::buffer(header), asio::buffer(message.key), asio::buffer(*message.value)};
      co_await writer_.write(buffers, error);
      bytes_ -= message.value->size();
      drained_.cancel();
    }
    close();
  }

  /// Returns once at most `limit` bytes of values are waiting, or after close().
  asio::awaitable<void> wait_below(std::size_t limit) {
    while (bytes_ > limit && !closed_) {
      std::error_code woken;
      co_await drained_.async_wait(asio::redirect_error(asio::use_awaitable, woken));
    }
  }

  void close() {
    closed_ = true;
    filled_.cancel();
    drained_.cancel();
  }

 private:
  net::ByteWriter writer_;
  net::Seal seal_;
  std::deque<StoreMessage> messages_;
  std::size_t bytes_ = 0;
  bool closed_ = false;
  asio::steady_timer filled_;
  asio::steady_timer drained_;
};

}  // namespace bimetal::rendezvous

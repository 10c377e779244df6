#pragma once
// The store's messages (store_message.h) on a connection: read one by one, written in order by one
// coroutine. Used on the thread that runs the connection's io_context.

#include <asio/awaitable.hpp>
#include <asio/steady_timer.hpp>
#include <deque>

#include "bimetal/net/link/session.h"
#include "bimetal/rendezvous/store_message.h"

namespace bimetal::rendezvous {

/// Reads one message. Throws Error(CorruptData) for bytes that fail the checks (before anything is
/// allocated by their lengths), std::system_error when the connection ends.
asio::awaitable<StoreMessage> read_store_message(net::ByteReader& reader, net::Seal& seal);

/// Messages waiting to go out.
class Outbox {
 public:
  Outbox(asio::ip::tcp::socket& socket, const net::Direction& direction);

  void push(StoreMessage message);

  /// Writes until close() or a failed write, whose error it returns.
  asio::awaitable<std::error_code> run();

  /// Returns once at most `limit` bytes of values are waiting, or after close().
  asio::awaitable<void> wait_below(std::size_t limit);

  void close();

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

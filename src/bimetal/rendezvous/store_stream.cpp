#include "bimetal/rendezvous/store_stream.h"

#include <array>
#include <asio/redirect_error.hpp>
#include <asio/use_awaitable.hpp>
#include <span>
#include <string>
#include <utility>

namespace bimetal::rendezvous {

asio::awaitable<StoreMessage> read_store_message(net::ByteReader& reader, net::Seal& seal) {
  StoreHeader bytes;
  co_await reader.fill(bytes);
  StoreHeaderFields fields = decode_store_header(bytes, seal);
  std::string name(fields.key_bytes, '\0');
  co_await reader.fill(std::as_writable_bytes(std::span(name)));
  std::string value(fields.value_bytes, '\0');
  co_await reader.fill(std::as_writable_bytes(std::span(value)));
  co_return complete_store_message(std::move(fields), std::move(name), std::move(value), seal);
}

Outbox::Outbox(asio::ip::tcp::socket& socket, const net::Direction& direction)
    : writer_(socket, direction.cipher),
      seal_(direction.seal),
      filled_(socket.get_executor(), asio::steady_timer::time_point::max()),
      drained_(socket.get_executor(), asio::steady_timer::time_point::max()) {}

void Outbox::push(StoreMessage message) {
  bytes_ += message.value->size();
  messages_.push_back(std::move(message));
  filled_.cancel();
}

asio::awaitable<std::error_code> Outbox::run() {
  std::error_code error, woken;
  while (!closed_ && !error) {
    if (messages_.empty()) {
      co_await filled_.async_wait(asio::redirect_error(asio::use_awaitable, woken));
      continue;
    }
    const StoreMessage message = std::move(messages_.front());
    messages_.pop_front();
    const StoreHeader header = encode_store_header(message, seal_);
    const std::array<asio::const_buffer, 3> buffers{asio::buffer(header), asio::buffer(message.key),
                                                    asio::buffer(*message.value)};
    co_await writer_.write(buffers, error);
    bytes_ -= message.value->size();
    drained_.cancel();
  }
  co_return error;
}

asio::awaitable<void> Outbox::wait_below(std::size_t limit) {
  std::error_code woken;
  while (bytes_ > limit && !closed_) {
    co_await drained_.async_wait(asio::redirect_error(asio::use_awaitable, woken));
  }
}

void Outbox::close() {
  closed_ = true;
  filled_.cancel();
  drained_.cancel();
}

}  // namespace bimetal::rendezvous

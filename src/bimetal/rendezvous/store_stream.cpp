#include "bimetal/rendezvous/store_stream.h"

#include <span>
#include <string>
#include <system_error>
#include <utility>

namespace bimetal::rendezvous {
namespace {

asio::awaitable<void> fill(net::ByteReader& reader, std::span<std::byte> bytes) {
  if (const std::error_code error = co_await reader.read(bytes)) throw std::system_error(error);
}

}  // namespace

asio::awaitable<StoreMessage> read_store_message(net::ByteReader& reader, net::Seal& seal) {
  StoreHeader bytes;
  co_await fill(reader, bytes);
  StoreHeaderFields fields = decode_store_header(bytes, seal);
  std::string name(fields.key_bytes, '\0');
  co_await fill(reader, std::as_writable_bytes(std::span(name)));
  std::string value(fields.value_bytes, '\0');
  co_await fill(reader, std::as_writable_bytes(std::span(value)));
  co_return complete_store_message(std::move(fields), std::move(name), std::move(value), seal);
}

}  // namespace bimetal::rendezvous

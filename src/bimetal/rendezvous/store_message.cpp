#include "bimetal/rendezvous/store_message.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "bimetal/base/error.h"
#include "bimetal/base/wire.h"
#include "bimetal/net/sodium.h"

namespace bimetal::rendezvous {
namespace {

constexpr std::size_t kHeaderSumAt = 40;

std::uint64_t checksum(const void* data, std::size_t size, const net::SessionKey& key) {
  std::array<std::byte, crypto_shorthash_BYTES> sum;
  crypto_shorthash(reinterpret_cast<unsigned char*>(sum.data()),
                   static_cast<const unsigned char*>(data), size,
                   reinterpret_cast<const unsigned char*>(key.data()));
  return WireReader(sum).u64();
}

/// Key and value are summed apart, and the header's sum covers both sums and both lengths.
std::uint64_t body_checksum(const std::string& key, const std::string& value,
                            const net::SessionKey& session) {
  WireWriter sums;
  sums.u64(checksum(key.data(), key.size(), session));
  sums.u64(checksum(value.data(), value.size(), session));
  return checksum(sums.bytes().data(), sums.bytes().size(), session);
}

}  // namespace

const std::shared_ptr<const std::string>& StoreMessage::empty_value() {
  static const auto empty = std::make_shared<const std::string>();
  return empty;
}

StoreHeader encode_store_header(const StoreMessage& message, const net::SessionKey& key) {
  WireWriter out;
  out.u32(kStoreMagic);
  out.u8(static_cast<std::uint8_t>(message.call));
  out.u8(static_cast<std::uint8_t>(message.status));
  out.u16(0);
  out.u64(message.request);
  out.i64(message.number);
  out.u32(static_cast<std::uint32_t>(message.key.size()));
  out.u32(static_cast<std::uint32_t>(message.value->size()));
  out.u64(body_checksum(message.key, *message.value, key));
  out.u64(checksum(out.bytes().data(), out.bytes().size(), key));
  StoreHeader header;
  std::copy(out.bytes().begin(), out.bytes().end(), header.begin());
  return header;
}

StoreHeaderFields decode_store_header(const StoreHeader& bytes, const net::SessionKey& key) {
  WireReader in(bytes);
  if (in.u32() != kStoreMagic) throw Error(ErrorCode::CorruptData, "no store message (magic)");
  StoreHeaderFields header;
  header.message.call = static_cast<StoreCall>(in.u8());
  header.message.status = static_cast<StoreStatus>(in.u8());
  in.u16();
  header.message.request = in.u64();
  header.message.number = in.i64();
  header.key_bytes = in.u32();
  header.value_bytes = in.u32();
  header.body_sum = in.u64();
  if (in.u64() != checksum(bytes.data(), kHeaderSumAt, key)) {
    throw Error(ErrorCode::CorruptData, "a store message's header fails its checksum");
  }
  if (header.key_bytes > kMaxKeyBytes || header.value_bytes > kMaxValueBytes) {
    throw Error(ErrorCode::CorruptData,
                fmt::format("a store message announces a key of {} and a value of {} bytes",
                            header.key_bytes, header.value_bytes));
  }
  return header;
}

StoreMessage complete_store_message(StoreHeaderFields fields, std::string key, std::string value,
                                    const net::SessionKey& session) {
  if (body_checksum(key, value, session) != fields.body_sum) {
    throw Error(ErrorCode::CorruptData, "a store message's key or value fails its checksum");
  }
  fields.message.key = std::move(key);
  if (!value.empty()) fields.message.value = std::make_shared<const std::string>(std::move(value));
  return std::move(fields.message);
}

}  // namespace bimetal::rendezvous

#include "bimetal/rendezvous/store_message.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "bimetal/base/error.h"
#include "bimetal/base/wire.h"

namespace bimetal::rendezvous {
namespace {

constexpr std::size_t kHeaderSumAt = 40;

std::span<const std::byte> bytes_of(const std::string& text) {
  return std::as_bytes(std::span(text));
}

/// Key and value are summed apart, and the header's sum covers both sums and both lengths.
std::uint64_t body_checksum(const std::string& key, const std::string& value,
                            const net::Seal& seal) {
  WireWriter sums;
  sums.u64(seal.sum_body(bytes_of(key)));
  sums.u64(seal.sum_body(bytes_of(value)));
  return seal.sum_body(sums.bytes());
}

}  // namespace

const std::shared_ptr<const std::string>& StoreMessage::empty_value() {
  static const auto empty = std::make_shared<const std::string>();
  return empty;
}

StoreHeader encode_store_header(const StoreMessage& message, net::Seal& seal) {
  WireWriter out;
  out.u32(kStoreMagic);
  out.u8(static_cast<std::uint8_t>(message.call));
  out.u8(static_cast<std::uint8_t>(message.status));
  out.u16(0);
  out.u64(message.request);
  out.i64(message.number);
  out.u32(static_cast<std::uint32_t>(message.key.size()));
  out.u32(static_cast<std::uint32_t>(message.value->size()));
  out.u64(body_checksum(message.key, *message.value, seal));
  out.u64(seal.sum_next_head(out.bytes()));
  StoreHeader header;
  std::copy(out.bytes().begin(), out.bytes().end(), header.begin());
  return header;
}

StoreHeaderFields decode_store_header(const StoreHeader& bytes, net::Seal& seal) {
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
  if (in.u64() != seal.sum_next_head(std::span(bytes).first<kHeaderSumAt>())) {
    throw Error(ErrorCode::CorruptData,
                "a store message's header fails its checksum, or is not the one sent next");
  }
  if (header.key_bytes > kMaxKeyBytes || header.value_bytes > kMaxValueBytes) {
    throw Error(ErrorCode::CorruptData,
                fmt::format("a store message announces a key of {} and a value of {} bytes",
                            header.key_bytes, header.value_bytes));
  }
  return header;
}

StoreMessage complete_store_message(StoreHeaderFields fields, std::string key, std::string value,
                                    const net::Seal& seal) {
  if (body_checksum(key, value, seal) != fields.body_sum) {
    throw Error(ErrorCode::CorruptData, "a store message's key or value fails its checksum");
  }
  fields.message.key = std::move(key);
  if (!value.empty()) fields.message.value = std::make_shared<const std::string>(std::move(value));
  return std::move(fields.message);
}

}  // namespace bimetal::rendezvous

#include "bimetal/net/frame.h"

#include <fmt/format.h>

#include <algorithm>
#include <type_traits>

#include "bimetal/base/error.h"
#include "bimetal/net/noise.h"

namespace bimetal::net {
namespace {

static_assert(sizeof(SessionKey) == 2 * crypto_shorthash_KEYBYTES);

std::uint64_t siphash(std::span<const std::byte> bytes, const std::byte* key) {
  std::array<unsigned char, crypto_shorthash_BYTES> sum;
  crypto_shorthash(sum.data(), reinterpret_cast<const unsigned char*>(bytes.data()), bytes.size(),
                   reinterpret_cast<const unsigned char*>(key));
  std::uint64_t number = 0;
  for (std::size_t i = 0; i < sum.size(); ++i) number |= std::uint64_t{sum[i]} << (8 * i);
  return number;
}

}  // namespace

std::uint64_t Seal::sum_next_head(std::span<const std::byte> head) {
  std::array<std::byte, kMaxHeadBytes + sizeof(messages_)> covered;
  if (head.size() > kMaxHeadBytes) throw Error(ErrorCode::Internal, "too long a head to be summed");
  auto end = std::copy(head.begin(), head.end(), covered.begin());
  for (std::size_t i = 0; i < sizeof(messages_); ++i) {
    *end++ = static_cast<std::byte>(messages_ >> (8 * i));
  }
  ++messages_;
  return siphash(std::span(covered).first(head.size() + sizeof(messages_)), key_.data());
}

std::uint64_t Seal::sum_body(std::span<const std::byte> body) const {
  return siphash(body, key_.data() + crypto_shorthash_KEYBYTES);
}

namespace {

// Offsets within the header; the table in docs/protocol.md is this one.
constexpr std::size_t kMagicAt = 0;
constexpr std::size_t kVersionAt = 4;
constexpr std::size_t kKindAt = 6;
constexpr std::size_t kOperationAt = 7;
constexpr std::size_t kDtypeAt = 8;
constexpr std::size_t kReduceOpAt = 9;
constexpr std::size_t kCompressionAt = 10;
constexpr std::size_t kAlgorithmAt = 11;
constexpr std::size_t kGroupAt = 12;
constexpr std::size_t kEpochAt = 16;
constexpr std::size_t kRootAt = 20;
constexpr std::size_t kSequenceAt = 24;
constexpr std::size_t kCountAt = 32;
constexpr std::size_t kPayloadBytesAt = 40;
constexpr std::size_t kPartAt = 48;
constexpr std::size_t kCompressionDetailAt = 52;
constexpr std::size_t kPayloadSumAt = 56;
constexpr std::size_t kChecksumAt = 64;

static_assert(kChecksumAt + sizeof(std::uint64_t) == kFrameHeaderBytes);
static_assert(kChecksumAt <= Seal::kMaxHeadBytes);

constexpr std::uint8_t kSealed = 0x80;  // beside the kind

template <typename Integer>
void put(EncodedHeader& out, std::size_t at, Integer value) {
  const auto bits = static_cast<std::make_unsigned_t<Integer>>(value);
  for (std::size_t i = 0; i < sizeof(Integer); ++i) {
    out[at + i] = static_cast<std::byte>(bits >> (8 * i));
  }
}

template <typename Integer>
Integer take(std::span<const std::byte, kFrameHeaderBytes> bytes, std::size_t at) {
  std::uint64_t bits = 0;
  for (std::size_t i = 0; i < sizeof(Integer); ++i) {
    bits |= static_cast<std::uint64_t>(bytes[at + i]) << (8 * i);
  }
  return static_cast<Integer>(bits);
}

FrameKind checked_kind(std::uint8_t kind) {
  if (kind >= static_cast<std::uint8_t>(FrameKind::Data) &&
      kind <= static_cast<std::uint8_t>(FrameKind::Loss)) {
    return static_cast<FrameKind>(kind);
  }
  throw Error(ErrorCode::CorruptData, fmt::format("frame of unknown kind {}", kind));
}

void check_origin(std::span<const std::byte, kFrameHeaderBytes> bytes, Seal& seal) {
  if (take<std::uint32_t>(bytes, kMagicAt) != kFrameMagic) {
    throw Error(ErrorCode::ProtocolMismatch, "these bytes are no Bimetal frame (wrong magic)");
  }
  if (const auto version = take<std::uint16_t>(bytes, kVersionAt); version != kProtocolVersion) {
    throw Error(ErrorCode::ProtocolMismatch,
                fmt::format("frame of protocol version {}; this side speaks version {}", version,
                            kProtocolVersion));
  }
  if (seal.sum_next_head(bytes.first<kChecksumAt>()) != take<std::uint64_t>(bytes, kChecksumAt)) {
    throw Error(ErrorCode::CorruptData,
                "frame header fails its checksum, or is not the one sent next");
  }
}

}  // namespace

EncodedHeader encode_header(const FrameHeader& header, Seal& seal) {
  EncodedHeader out{};
  put(out, kMagicAt, kFrameMagic);
  put(out, kVersionAt, kProtocolVersion);
  const auto kind = static_cast<std::uint8_t>(header.kind);
  put(out, kKindAt, static_cast<std::uint8_t>(header.sealed ? kind | kSealed : kind));
  put(out, kOperationAt, header.operation);
  put(out, kDtypeAt, header.dtype);
  put(out, kReduceOpAt, header.reduce_op);
  put(out, kCompressionAt, header.compression);
  put(out, kAlgorithmAt, header.algorithm);
  put(out, kGroupAt, header.group);
  put(out, kEpochAt, header.epoch);
  put(out, kRootAt, header.root);
  put(out, kSequenceAt, header.sequence);
  put(out, kCountAt, header.count);
  put(out, kPayloadBytesAt, header.payload_bytes);
  put(out, kPartAt, header.part);
  put(out, kCompressionDetailAt, header.compression_detail);
  put(out, kPayloadSumAt, header.payload_sum);
  put(out, kChecksumAt, seal.sum_next_head(std::span(out).first<kChecksumAt>()));
  return out;
}

FrameHeader decode_header(std::span<const std::byte, kFrameHeaderBytes> bytes, Seal& seal) {
  check_origin(bytes, seal);
  const auto kind = take<std::uint8_t>(bytes, kKindAt);
  FrameHeader header;
  header.kind = checked_kind(kind & ~kSealed);
  header.sealed = (kind & kSealed) != 0;
  header.operation = take<std::uint8_t>(bytes, kOperationAt);
  header.dtype = take<std::uint8_t>(bytes, kDtypeAt);
  header.reduce_op = take<std::uint8_t>(bytes, kReduceOpAt);
  header.compression = take<std::uint8_t>(bytes, kCompressionAt);
  header.algorithm = take<std::uint8_t>(bytes, kAlgorithmAt);
  header.group = take<std::uint32_t>(bytes, kGroupAt);
  header.epoch = take<std::uint32_t>(bytes, kEpochAt);
  header.root = take<std::int32_t>(bytes, kRootAt);
  header.sequence = take<std::uint64_t>(bytes, kSequenceAt);
  header.count = take<std::uint64_t>(bytes, kCountAt);
  header.payload_bytes = take<std::uint64_t>(bytes, kPayloadBytesAt);
  header.part = take<std::uint32_t>(bytes, kPartAt);
  header.compression_detail = take<std::uint32_t>(bytes, kCompressionDetailAt);
  header.payload_sum = take<std::uint64_t>(bytes, kPayloadSumAt);
  return header;
}

void seal_payload(FrameHeader& header, std::span<const std::byte> payload, const Seal& seal) {
  const bool wanted =
      header.sealed || header.kind == FrameKind::Abort || header.kind == FrameKind::Loss;
  header.sealed = !payload.empty() && (wanted || payload.size() <= kAlwaysSealedBytes);
  header.payload_sum = header.sealed ? seal.sum_body(payload) : 0;
}

void check_payload(const FrameHeader& header, std::span<const std::byte> payload,
                   const Seal& seal) {
  if (!header.sealed || header.payload_sum == seal.sum_body(payload)) return;
  throw Error(ErrorCode::CorruptData,
              "a frame's payload fails its checksum: it is not what was sent");
}

}  // namespace bimetal::net

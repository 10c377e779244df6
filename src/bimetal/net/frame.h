#pragma once
// The header before every payload between two ranks. Fixed 64 bytes, little-endian, with a keyed
// checksum (SipHash-2-4 under the connection's session key), so that damage, truncation and bytes
// from elsewhere are noticed before a field is believed. Layout: docs/protocol.md.

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

namespace bimetal::net {

inline constexpr std::uint32_t kFrameMagic = 0x4c544d42;  // "BMTL"
inline constexpr std::uint16_t kProtocolVersion = 2;
inline constexpr std::size_t kFrameHeaderBytes = 64;

enum class FrameKind : std::uint8_t {
  Data = 1,       ///< part of a collective or a point-to-point message
  Heartbeat = 2,  ///< no payload; shows that the path to the peer works
  Abort = 3,      ///< payload: why the group ends (see comm/abort_message.h)
  Goodbye = 4,    ///< no payload; an orderly close, so that end-of-stream is no failure
};

/// What a Data frame belongs to. `operation`, `dtype`, `count`, `root` and the compression describe
/// the whole call and are the fingerprint that the receiver compares with its own call.
struct FrameHeader {
  FrameKind kind = FrameKind::Data;
  std::uint8_t operation = 0;    ///< comm::Operation
  std::uint8_t dtype = 0;        ///< comm::DType
  std::uint8_t reduce_op = 0;    ///< comm::ReduceOp, 0 where nothing is reduced
  std::uint8_t compression = 0;  ///< comm::CompressionTag::code()
  std::uint8_t algorithm = 0;    ///< comm::Algorithm where one was asked for, else 0
  std::uint32_t group = 0;       ///< group id within the job; 0 is the world
  std::uint32_t epoch = 0;       ///< membership epoch; grows when the world changes
  std::uint64_t sequence = 0;    ///< call number within the group (point-to-point: the user's tag)
  std::uint64_t count = 0;       ///< elements of the whole call
  std::int32_t root = -1;        ///< root rank, -1 where there is none
  std::uint32_t part = 0;        ///< which message of the call this is (algorithm's own numbering)
  std::uint64_t payload_bytes = 0;       ///< bytes that follow this header
  std::uint32_t compression_detail = 0;  ///< comm::CompressionTag::detail

  friend bool operator==(const FrameHeader&, const FrameHeader&) = default;
};

/// 128-bit key for header checksums; the handshake gives each direction of a connection its own.
using SessionKey = std::array<std::byte, 16>;

using EncodedHeader = std::array<std::byte, kFrameHeaderBytes>;

/// `number`: how many frames have gone this way on the connection before. The checksum covers it,
/// so that a frame which is repeated, left out or put elsewhere in the stream is noticed.
EncodedHeader encode_header(const FrameHeader& header, const SessionKey& key,
                            std::uint64_t number = 0);

/// Throws Error(ProtocolMismatch) for a wrong magic or version, Error(CorruptData) for a wrong
/// checksum (or another number than the sender's) or an unknown kind.
FrameHeader decode_header(std::span<const std::byte, kFrameHeaderBytes> bytes,
                          const SessionKey& key, std::uint64_t number = 0);

}  // namespace bimetal::net

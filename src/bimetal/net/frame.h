#pragma once
// The header before every payload between two ranks, and between servers and their clients. It has
// 72 bytes, little-endian, with a keyed sum. So damage, truncation and foreign bytes are
// noticed before a field is used. A second sum, within it, covers all payloads except long tensors.
// Layout: docs/protocol.md.

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

namespace bimetal::net {

// Proves to one side of a connection that a message is the other side's, complete, and the next one
// in order. It uses keyed sums (SipHash-2-4) over each message's head and, where that is worth it,
// its body. Frames (frame.h) and the store's messages (rendezvous/store_message.h) carry them.

/// The key of one direction of a connection: 128 bits for heads, 128 for bodies. The handshake
/// makes the keys of both directions.
using SessionKey = std::array<std::byte, 32>;

/// The sums of one direction, as its sender makes them and its receiver checks them.
class Seal {
 public:
  /// Heads are no longer than that.
  static constexpr std::size_t kMaxHeadBytes = 64;

  explicit Seal(const SessionKey& key) : key_(key) {}

  /// The seal of the next message's head. It covers the number of messages sent before in this
  /// direction. So a message that is repeated, left out or moved in the stream is noticed.
  std::uint64_t sum_next_head(std::span<const std::byte> head);

  /// The seal of a body, by a key of its own, so that no body can pass for a head. It belongs in
  /// the head, which binds it to its message and place.
  std::uint64_t sum_body(std::span<const std::byte> body) const;

 private:
  SessionKey key_;
  std::uint64_t messages_ = 0;
};

inline constexpr std::uint32_t kFrameMagic = 0x4c544d42;  // "BMTL"
inline constexpr std::uint16_t kProtocolVersion = 4;
inline constexpr std::size_t kFrameHeaderBytes = 72;
/// Payloads up to this length are always sealed: that takes a tenth of a microsecond.
inline constexpr std::size_t kAlwaysSealedBytes = 256;
/// No Loss payload is longer; longer texts are cut.
inline constexpr std::size_t kMaxLossBytes = 16384;

enum class FrameKind : std::uint8_t {
  Data = 1,       ///< part of a collective or a point-to-point message
  Heartbeat = 2,  ///< no payload; shows that the path to the peer works
  Abort = 3,      ///< payload: why the group ends (see comm/failure.h)
  Goodbye = 4,    ///< no payload; an orderly close, so that end-of-stream is no failure
  Loss = 5,       ///< payload: the rank that the sender has lost, and why (net/tcp/tcp_mesh_impl.h)
};

/// The header of a frame. `operation`, `dtype`, `count`, `root` and the compression describe the
/// whole call and are the fingerprint that the receiver compares with its own call.
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
  /// Before sending: whether the payload is to be sealed however long it is, for all that is no
  /// tensor. On arrival: whether it is.
  bool sealed = false;
  std::uint64_t payload_sum = 0;  ///< of a sealed payload: see seal_payload

  friend bool operator==(const FrameHeader&, const FrameHeader&) = default;
};

using EncodedHeader = std::array<std::byte, kFrameHeaderBytes>;

/// The next frame that goes this way.
EncodedHeader encode_header(const FrameHeader& header, Seal& seal);

/// The next frame that has come this way. Throws Error(ProtocolMismatch) for a wrong magic or
/// version, Error(CorruptData) for a wrong checksum (or another frame than the one sent next) or an
/// unknown kind.
FrameHeader decode_header(std::span<const std::byte, kFrameHeaderBytes> bytes, Seal& seal);

/// Seals the payload in its header where the header asks for it, where it is short, or an Abort's
/// or a Loss's.
void seal_payload(FrameHeader& header, std::span<const std::byte> payload, const Seal& seal);

/// Throws Error(CorruptData) unless `payload` is the one that a sealed frame was made with. Frames
/// without a seal are taken as they are.
void check_payload(const FrameHeader& header, std::span<const std::byte> payload, const Seal& seal);

}  // namespace bimetal::net

#pragma once
// Proves to one side of a connection that a message is the other side's, complete, and the next one
// in order. It uses keyed sums (SipHash-2-4) over each message's head and, where that is worth it,
// its body. Frames (frame.h) and the store's messages (rendezvous/store_message.h) carry them.

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

namespace bimetal::net {

/// Of one direction of a connection: 128 bits for heads, 128 for bodies. The handshake makes both
/// directions'.
using SessionKey = std::array<std::byte, 32>;

/// The sums of one direction, as its sender makes them and its receiver checks them.
class Seal {
 public:
  /// Heads are no longer than that.
  static constexpr std::size_t kMaxHeadBytes = 64;

  explicit Seal(const SessionKey& key) : key_(key) {}

  /// Of the next message's head. It covers how many messages have gone this way before, so that one
  /// which is repeated, left out or put elsewhere in the stream is noticed.
  std::uint64_t sum_next_head(std::span<const std::byte> head);

  /// Of a body, by a key of its own, so that nothing that is sent as a body can pass for a head. It
  /// belongs into the head, which binds it to its message and place.
  std::uint64_t sum_body(std::span<const std::byte> body) const;

 private:
  SessionKey key_;
  std::uint64_t messages_ = 0;
};

}  // namespace bimetal::net

#pragma once
// Slots through which the parts of long messages go from one rank to another of its host. The
// sender makes them, for one receiver, and both know by counting which is the next. Frames on the
// connection announce that a part is there, or that its slot is free again (group/message_sender.h,
// mailbox/mailbox_memory.cpp). So nobody waits here, and a lost peer is noticed as always.

#include <cstddef>
#include <cstdint>
#include <span>

#include "bimetal/comm/parts.h"
#include "bimetal/net/frame.h"
#include "bimetal/net/shm/shared_memory.h"

namespace bimetal::comm {

/// For one thread at a time. Movable.
class MessageRing {
 public:
  static constexpr std::size_t kSlots = 8;
  static constexpr std::size_t kSlotBytes = kPartBytes;
  /// Shorter messages are no faster through memory than as they are.
  static constexpr std::size_t kLongBytes = std::size_t{64} << 10;

  /// The sender's. Errors: SharedMemory::create's.
  static MessageRing make();
  /// The receiver's. Errors: SharedMemory::open's.
  static MessageRing open(const net::SegmentAddress& address);

  const net::SegmentAddress& address() const noexcept { return memory_.address(); }
  /// Once the receiver has it.
  void forget_name() noexcept { memory_.forget_name(); }

  /// Of the next part's slot the first `bytes`.
  std::span<std::byte> next(std::size_t bytes);

 private:
  explicit MessageRing(net::SharedMemory memory) : memory_(std::move(memory)) {}

  net::SharedMemory memory_;
  std::size_t parts_ = 0;  // so far
};

/// Whether a frame announces a part in a slot.
bool is_placed(const net::FrameHeader& header) noexcept;
/// Whether it is about a ring: its `part` says what (call.h).
bool is_ring_word(const net::FrameHeader& header) noexcept;
net::FrameHeader ring_word(std::uint32_t group, std::uint32_t word);

/// Bytes of the whole message that a frame belongs to; 0 for a header that makes no sense.
std::size_t message_bytes(const net::FrameHeader& header) noexcept;
/// Of part header.part of it; 0 if it has no such part.
std::size_t bytes_of_part(const net::FrameHeader& header) noexcept;

}  // namespace bimetal::comm

#include "bimetal/comm/shm/message_ring.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "bimetal/comm/call.h"

namespace bimetal::comm {
namespace {

/// Slots begin at a page.
constexpr std::size_t kSlotsAt = 4096;
constexpr std::size_t kSegmentBytes = kSlotsAt + MessageRing::kSlots * MessageRing::kSlotBytes;

bool is_message(const net::FrameHeader& header) noexcept {
  return header.kind == net::FrameKind::Data &&
         header.operation == static_cast<std::uint8_t>(Operation::send_recv);
}

}  // namespace

MessageRing MessageRing::make() {
  return MessageRing(net::SharedMemory::create(kSegmentBytes));
}

MessageRing MessageRing::open(const net::SegmentAddress& address) {
  return MessageRing(net::SharedMemory::open(address, kSegmentBytes));
}

std::span<std::byte> MessageRing::next(std::size_t bytes) {
  const auto slot = parts_++ % kSlots;
  return memory_.bytes().subspan(kSlotsAt + slot * kSlotBytes, bytes);
}

bool is_placed(const net::FrameHeader& header) noexcept {
  return is_message(header) && header.part >= kPlacedPart && header.part < kFreedPart;
}

bool is_ring_word(const net::FrameHeader& header) noexcept {
  return is_message(header) && header.part >= kFreedPart && header.part <= kOfferPart;
}

net::FrameHeader ring_word(std::uint32_t group, std::uint32_t word) {
  const Call call{.operation = Operation::send_recv};
  auto header = call.header_to(group, -1);
  header.part = word;
  return header;
}

std::size_t message_bytes(const net::FrameHeader& header) noexcept {
  const auto width = size_of(static_cast<DType>(header.dtype));
  if (width == 0 || header.count > std::numeric_limits<std::size_t>::max() / width) return 0;
  return static_cast<std::size_t>(header.count) * width;
}

std::size_t bytes_of_part(const net::FrameHeader& header) noexcept {
  const auto all = message_bytes(header);
  const auto begin = std::size_t{header.part} * kPartBytes;
  return all > begin ? std::min(all - begin, kPartBytes) : 0;
}

}  // namespace bimetal::comm

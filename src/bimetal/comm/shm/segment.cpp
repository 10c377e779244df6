#include "bimetal/comm/shm/segment.h"

#include <algorithm>
#include <array>
#include <cstring>
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

void PostedCall::post(const net::FrameHeader& header) {
  sequence.store(header.sequence, std::memory_order_relaxed);
  count.store(header.count, std::memory_order_relaxed);
  kind.store(std::uint64_t{header.operation} | std::uint64_t{header.dtype} << 8 |
                 std::uint64_t{header.reduce_op} << 16 | std::uint64_t{header.algorithm} << 24 |
                 std::uint64_t{static_cast<std::uint32_t>(header.root)} << 32,
             std::memory_order_relaxed);
  compression.store(
      std::uint64_t{header.compression} | std::uint64_t{header.compression_detail} << 8,
      std::memory_order_relaxed);
  epoch.store(header.epoch, std::memory_order_relaxed);
}

net::FrameHeader PostedCall::header(std::uint32_t group) const {
  const auto packed = kind.load(std::memory_order_relaxed);
  net::FrameHeader header;
  header.kind = net::FrameKind::Data;
  header.group = group;
  header.sequence = sequence.load(std::memory_order_relaxed);
  header.count = count.load(std::memory_order_relaxed);
  header.operation = static_cast<std::uint8_t>(packed);
  header.dtype = static_cast<std::uint8_t>(packed >> 8);
  header.reduce_op = static_cast<std::uint8_t>(packed >> 16);
  header.algorithm = static_cast<std::uint8_t>(packed >> 24);
  header.root = static_cast<std::int32_t>(packed >> 32);
  header.epoch = static_cast<std::uint32_t>(epoch.load(std::memory_order_relaxed));
  const auto how = compression.load(std::memory_order_relaxed);
  header.compression = static_cast<std::uint8_t>(how);
  header.compression_detail = static_cast<std::uint32_t>(how >> 8);
  return header;
}

namespace {

constexpr std::size_t kNameBytes = 32;
static_assert(kAddressBytes == 16 + kNameBytes + net::SegmentAddress::kNonceBytes);

}  // namespace

void write_address(WireWriter& writer, const net::SegmentAddress& address) {
  writer.u64(address.process);
  writer.u64(address.handle);
  std::array<std::byte, kNameBytes> name{};
  std::memcpy(name.data(), address.name.data(), std::min(address.name.size(), name.size()));
  writer.raw(name);
  writer.raw(address.nonce);
}

net::SegmentAddress read_address(WireReader& reader) {
  net::SegmentAddress address;
  address.process = reader.u64();
  address.handle = reader.u64();
  const auto name = reader.raw(kNameBytes);
  const auto end = std::ranges::find(name, std::byte{0});
  address.name.assign(reinterpret_cast<const char*>(name.data()),
                      static_cast<std::size_t>(end - name.begin()));
  std::ranges::copy(reader.raw(address.nonce.size()), address.nonce.begin());
  return address;
}

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

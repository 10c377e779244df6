#include "bimetal/comm/shm/segment.h"

namespace bimetal::comm {
namespace {

constexpr auto kRelaxed = std::memory_order_relaxed;

}  // namespace

void PostedCall::post(const net::FrameHeader& header) {
  sequence.store(header.sequence, kRelaxed);
  count.store(header.count, kRelaxed);
  kind.store(std::uint64_t{header.operation} | std::uint64_t{header.dtype} << 8 |
                 std::uint64_t{header.reduce_op} << 16 | std::uint64_t{header.algorithm} << 24 |
                 std::uint64_t{static_cast<std::uint32_t>(header.root)} << 32,
             kRelaxed);
  compression.store(std::uint64_t{header.compression} |
                        std::uint64_t{header.compression_detail} << 8,
                    kRelaxed);
}

net::FrameHeader PostedCall::header(std::uint32_t group) const {
  const auto packed = kind.load(kRelaxed);
  net::FrameHeader header;
  header.kind = net::FrameKind::Data;
  header.group = group;
  header.sequence = sequence.load(kRelaxed);
  header.count = count.load(kRelaxed);
  header.operation = static_cast<std::uint8_t>(packed);
  header.dtype = static_cast<std::uint8_t>(packed >> 8);
  header.reduce_op = static_cast<std::uint8_t>(packed >> 16);
  header.algorithm = static_cast<std::uint8_t>(packed >> 24);
  header.root = static_cast<std::int32_t>(packed >> 32);
  const auto how = compression.load(kRelaxed);
  header.compression = static_cast<std::uint8_t>(how);
  header.compression_detail = static_cast<std::uint32_t>(how >> 8);
  return header;
}

}  // namespace bimetal::comm

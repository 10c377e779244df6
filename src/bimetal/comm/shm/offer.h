#pragma once
// The first message by which the ranks of a group find out which of them share memory
// (docs/protocol.md, "Finding shared memory").

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "bimetal/comm/transport.h"
#include "bimetal/net/shm/shared_memory.h"

namespace bimetal::comm {

/// What a rank wants and where its segment is.
struct Offer {
  Transport transport = Transport::automatic;
  bool made = false;         ///< a segment
  std::uint32_t island = 0;  ///< hash of its name; 0 for none
  std::uint64_t bytes = 0;   ///< of it
  net::SegmentAddress address;
};

std::vector<std::byte> encode_offer(const Offer& offer);

/// Error(CorruptData) for less or more than an offer. Its transport is as it came: ranks compare
/// it.
Offer decode_offer(std::span<const std::byte> bytes);

}  // namespace bimetal::comm

#pragma once
// Where a segment is, as ranks tell each other: 64 bytes (docs/protocol.md, "Finding shared
// memory").

#include <cstddef>

#include "bimetal/base/wire.h"
#include "bimetal/net/shm/shared_memory.h"

namespace bimetal::comm {

inline constexpr std::size_t kAddressBytes = 64;

void write_address(WireWriter& writer, const net::SegmentAddress& address);

/// Error(CorruptData) for less.
net::SegmentAddress read_address(WireReader& reader);

}  // namespace bimetal::comm

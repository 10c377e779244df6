#pragma once
// Payload of an Abort frame: why a rank ends its part in a group. Layout: docs/protocol.md.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "bimetal/comm/failure.h"
#include "bimetal/net/frame.h"

namespace bimetal::comm {

/// No Abort payload is longer; longer texts are cut.
inline constexpr std::size_t kMaxAbortBytes = 16384;

/// The group has failed for this reason, which its receiver takes over; or, without one, the
/// sender has left the group in good order and will send nothing more in it.
struct AbortMessage {
  std::optional<Failure> failure;
};

std::vector<std::byte> encode(const AbortMessage& message);

/// Of the frame that carries one.
net::FrameHeader abort_header(std::uint32_t group);

/// Throws Error(CorruptData).
AbortMessage decode_abort(std::span<const std::byte> payload);

}  // namespace bimetal::comm

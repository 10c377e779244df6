#pragma once
// Checks the sizes that ranks announce before they send (exchange.h).

#include <cstddef>
#include <cstdint>
#include <span>

namespace bimetal::comm {

/// What ranks say of themselves; a training state may have as many bytes as a machine has memory.
inline constexpr std::int64_t kMostSaid = std::int64_t{1} << 30;
inline constexpr std::int64_t kMostSent = std::int64_t{1} << 44;

/// `size` of `rank`. Error(CorruptData), naming it, below 0 and above `most`.
std::size_t checked_size(std::int64_t size, std::int64_t most, int rank);

/// The largest of what the ranks, in their order, have to say; each is at most kMostSaid. All ranks
/// have the same numbers, and so the same error.
std::size_t longest_said(std::span<const std::int64_t> sizes);

}  // namespace bimetal::comm

#pragma once
// How long messages are cut: into parts that are small enough for the reduction of one to overlap
// the receipt of the next.

#include <algorithm>
#include <cstddef>
#include <span>
#include <vector>

#include "bimetal/comm/call.h"

namespace bimetal::comm {

/// A multiple of every element's size.
inline constexpr std::size_t kPartBytes = std::size_t{256} << 10;
static_assert(kPartBytes <= kMaxPartBytes);

/// `bytes` in pieces of `part_bytes` and a remainder; a single empty piece if there are none, so
/// that an empty message is a message still.
template <typename Byte>
std::vector<std::span<Byte>> parts_of(std::span<Byte> bytes, std::size_t part_bytes = kPartBytes) {
  std::vector<std::span<Byte>> parts;
  do {
    parts.push_back(bytes.first(std::min(bytes.size(), part_bytes)));
    bytes = bytes.subspan(parts.back().size());
  } while (!bytes.empty());
  return parts;
}

}  // namespace bimetal::comm

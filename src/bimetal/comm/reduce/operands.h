#pragma once
// The memory of one rank that a collective reads and writes.

#include <cstddef>
#include <span>

namespace bimetal::comm {

/// Where the operation works in place (all_reduce, reduce, broadcast) both are the same memory.
/// What a rank neither gives nor gets (gather's output away from the root) may be anything.
struct Operands {
  std::span<const std::byte> input;
  std::span<std::byte> output;
};

}  // namespace bimetal::comm

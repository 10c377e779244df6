#pragma once
// The result of a gather in which ranks give different numbers of bytes, not known beforehand.

#include <cstddef>
#include <memory>
#include <span>
#include <vector>

namespace bimetal::comm {

/// Empty until the operation is done.
struct Gathered {
  std::vector<std::span<const std::byte>> parts;  ///< rank by rank, in `memory`
  std::unique_ptr<std::byte[]> memory;
};

}  // namespace bimetal::comm

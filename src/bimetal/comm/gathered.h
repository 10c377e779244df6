#pragma once
// What ranks have gathered without knowing of each other how much it would be.

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

#pragma once
// The algorithms by which an all-reduce exchanges its data. docs/algorithms.md compares them.

#include <cstdint>
#include <string_view>

namespace bimetal::comm {

/// The values are part of the wire format (docs/protocol.md) and never change.
enum class Algorithm : std::uint8_t {
  automatic = 0,           ///< the fabric chooses by size, ranks and measured links
  recursive_doubling = 1,  ///< fewest steps: short messages
  halving_doubling = 2,    ///< Rabenseifner: fewest bytes in few steps
  ring = 3,                ///< fewest bytes: long messages on equal links
  tree = 4,                ///< to one rank and back
  two_level = 5,           ///< inside each host, between hosts, inside again
  weighted = 6,            ///< unequal links: slow ones carry fewer bytes
};

std::string_view to_string(Algorithm algorithm) noexcept;

/// `asked`, or what the environment variable BIMETAL_ALGORITHM says where that leaves it open.
/// Error(InvalidArgument) for a value that names none.
Algorithm algorithm_for(Algorithm asked);

}  // namespace bimetal::comm

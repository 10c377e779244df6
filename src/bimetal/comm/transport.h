#pragma once
// What carries the data of collectives.

#include <cstdint>
#include <string_view>

namespace bimetal::comm {

enum class Transport : std::uint8_t {
  automatic = 0,  ///< shared memory where all ranks of a group have some in common, else tcp
  tcp = 1,        ///< the connections between the ranks
  shm = 2,        ///< shared memory; Error(Unsupported) where ranks have none in common
};

/// "auto", "tcp" or "shm".
std::string_view to_string(Transport transport) noexcept;

/// `asked`, or what the environment variable BIMETAL_TRANSPORT says where that leaves it open.
/// Error(InvalidArgument) for a value that is none of the three.
Transport transport_for(Transport asked);

}  // namespace bimetal::comm

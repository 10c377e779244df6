#pragma once
// What carries the data of collectives.

#include <cstdint>
#include <string>
#include <string_view>

namespace bimetal::comm {

enum class Transport : std::uint8_t {
  automatic = 0,  ///< shared memory where all ranks of a group have some in common, else the mesh
  tcp = 1,        ///< the connections between the ranks
  shm = 2,        ///< shared memory; Error(Unsupported) where ranks have none in common
  mpi = 3,        ///< MPI's messages; for ranks that mpirun has started
};

/// "auto", "tcp", "shm" or "mpi".
std::string_view to_string(Transport transport) noexcept;

/// `asked`, or what the environment variable BIMETAL_TRANSPORT says where that leaves it open.
/// Error(InvalidArgument) for a value that is none of these.
Transport transport_for(Transport asked);

/// The transport of that name. Error(InvalidArgument) naming `where` the name comes from.
Transport transport_of(std::string_view name, std::string_view where);

/// `asked`, or what the environment variable BIMETAL_ISLAND says where that is empty.
std::string island_for(std::string asked);

}  // namespace bimetal::comm

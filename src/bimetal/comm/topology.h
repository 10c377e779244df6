#pragma once
// Which ranks of a group share memory, and what carries their collectives.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace bimetal::comm {

/// The one of `islands` that holds `rank`; each rank is in exactly one.
const std::vector<int>& island_of(const std::vector<std::vector<int>>& islands, int rank);

/// The first rank of each island, which stands for it where one is enough.
std::vector<int> first_ranks(const std::vector<std::vector<int>>& islands);

/// The same on all ranks of a group. Every rank is in exactly one island, maybe alone.
struct Topology {
  std::vector<std::vector<int>> islands;  ///< ranks of the group, ascending, by their lowest rank

  /// Those that are together with it.
  const std::vector<int>& island_of(int rank) const { return comm::island_of(islands, rank); }
  /// Whether all ranks are together.
  bool one_island() const noexcept { return islands.size() == 1; }

  /// From who could open whose memory: sees[a][b]. Ranks are together if all of them see each
  /// other and see the same others besides; in doubt a rank is alone.
  static Topology from(const std::vector<std::vector<bool>>& sees);
};

// What carries the data of collectives.

/// What carries the data of collectives.
enum class Transport : std::uint8_t {
  /// The connections between the ranks.
  /// Shared memory; Error(Unsupported) where ranks have none in common.
  /// MPI's messages; for ranks that mpirun has started.
  automatic = 0,  ///< shared memory where all ranks of a group have some in common, else the mesh
  tcp = 1,
  shm = 2,
  mpi = 3,
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

#pragma once
// The algorithms by which an all-reduce exchanges its data. docs/algorithms.md compares them.
//
// Which ranks of a group share memory, and what carries their collectives.

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace bimetal::comm {

/// The values are part of the wire format (docs/protocol.md) and never change.
enum class Algorithm : std::uint8_t {
  /// Fewest steps: short messages.
  /// Rabenseifner: fewest bytes in few steps.
  /// Fewest bytes: long messages on equal links.
  /// To one rank and back.
  /// Inside each host, between hosts, inside again.
  /// Unequal links: slow ones carry fewer bytes.
  automatic = 0,  ///< the fabric chooses by size, ranks and measured links
  recursive_doubling = 1,
  halving_doubling = 2,
  ring = 3,
  tree = 4,
  two_level = 5,
  weighted = 6,
};

std::string_view to_string(Algorithm algorithm) noexcept;  ///< its name

/// `asked`, or the value of the environment variable BIMETAL_ALGORITHM if that leaves it open.
/// Error(InvalidArgument) for a value that names none.
Algorithm algorithm_for(Algorithm asked);

// The cost of an all-reduce by each algorithm over measured links, and the choice that follows.
// Latency α and bandwidth per link are as in Thakur, Rabenseifner and Gropp, "Optimization of
// collective communication operations in MPICH", 2005, section 3. Arithmetic is left out.

/// As measured over the connections between the ranks (group/all_reducer.h).
struct Links {
  double latency_s = 0;                  ///< of a short message, the slowest pair's
  std::vector<double> bytes_per_s = {};  ///< by rank: of its own link, one way while both are used
};

/// The choices that all ranks of a group follow. Whole numbers, made on one rank for all.
struct LinkPlan {
  std::uint64_t short_bytes = 0;            ///< recursive doubling up to here
  std::uint64_t middle_bytes = 0;           ///< halving and doubling up to here
  std::vector<std::uint32_t> weights = {};  ///< for what is longer, where links are unequal

  /// The algorithm for a message of so many bytes.
  Algorithm choose(std::size_t bytes) const;
};

/// Seconds of an all-reduce of `bytes` between all ranks of `links`; of automatic and two_level
/// (which depends on more than links) those of ring. At least two ranks.
double predicted_seconds(Algorithm algorithm, double bytes, const Links& links);

/// The plan for measured links. Weights are used where they promise a tenth or more.
LinkPlan plan_for(const Links& links);

/// The plan for `size` ranks of one host, whose links are the same memory: nothing is measured.
LinkPlan plan_for_one_host(int size);

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

  /// Made of which rank could open which rank's memory: sees[a][b]. Ranks are together if all of
  /// them see each other and see the same others besides; in doubt a rank is alone.
  static Topology from(const std::vector<std::vector<bool>>& sees);
};

// The carrier of a collective's data.

/// The carrier of a collective's data.
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

/// `asked`, or the value of the environment variable BIMETAL_TRANSPORT if that leaves it open.
/// Error(InvalidArgument) for a value that is none of these.
Transport transport_for(Transport asked);

/// The transport of that name. Error(InvalidArgument) naming `where` the name comes from.
Transport transport_of(std::string_view name, std::string_view where);

/// `asked`, or the value of the environment variable BIMETAL_ISLAND if that is empty.
std::string island_for(std::string asked);

}  // namespace bimetal::comm

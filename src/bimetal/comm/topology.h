#pragma once
// Which ranks of a group share memory.

#include <vector>

namespace bimetal::comm {

/// The one of `islands` that holds `rank`; each rank is in exactly one.
const std::vector<int>& island_of(const std::vector<std::vector<int>>& islands, int rank);

/// The first rank of each island, which stands for it where one is enough.
std::vector<int> first_ranks(const std::vector<std::vector<int>>& islands);

/// The same on all ranks of a group. Every rank is in exactly one island, maybe alone.
struct Topology {
  std::vector<std::vector<int>> islands;  ///< ranks of the group, ascending, by their lowest rank

  const std::vector<int>& island_of(int rank) const { return comm::island_of(islands, rank); }
  bool one_island() const noexcept { return islands.size() == 1; }

  /// From who could open whose memory: sees[a][b]. Ranks are together if all of them see each
  /// other and see the same others besides; in doubt a rank is alone.
  static Topology from(const std::vector<std::vector<bool>>& sees);
};

}  // namespace bimetal::comm

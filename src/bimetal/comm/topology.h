#pragma once
// Which ranks of a group have memory in common.

#include <vector>

namespace bimetal::comm {

/// The same on all ranks of a group. Every rank is in exactly one island, maybe alone.
struct Topology {
  std::vector<std::vector<int>> islands;  ///< ranks of the group, ascending, by their lowest rank

  const std::vector<int>& island_of(int rank) const;
  bool one_island() const noexcept { return islands.size() == 1; }

  /// From who could open whose memory: sees[a][b]. Ranks are together if all of them see each
  /// other and see the same others besides; in doubt a rank is alone.
  static Topology from(const std::vector<std::vector<bool>>& sees);
};

}  // namespace bimetal::comm

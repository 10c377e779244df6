#include "bimetal/comm/topology.h"

#include <algorithm>

namespace bimetal::comm {

const std::vector<int>& island_of(const std::vector<std::vector<int>>& islands, int rank) {
  return *std::ranges::find_if(
      islands, [&](const auto& island) { return std::ranges::find(island, rank) != island.end(); });
}

std::vector<int> first_ranks(const std::vector<std::vector<int>>& islands) {
  std::vector<int> first;
  for (const auto& island : islands) first.push_back(island.front());
  return first;
}

Topology Topology::from(const std::vector<std::vector<bool>>& sees) {
  const int size = static_cast<int>(sees.size());
  const auto company_of = [&](int rank) {
    std::vector<int> company;
    for (int other = 0; other < size; ++other) {
      if (other == rank || (sees[rank][other] && sees[other][rank])) company.push_back(other);
    }
    return company;
  };
  Topology topology;
  std::vector<bool> placed(size);
  for (int rank = 0; rank < size; ++rank) {
    if (placed[rank]) continue;
    auto island = company_of(rank);
    const bool agreed =
        std::ranges::all_of(island, [&](int other) { return company_of(other) == island; });
    if (!agreed) island = {rank};
    for (const int member : island) placed[member] = true;
    topology.islands.push_back(std::move(island));
  }
  return topology;
}

}  // namespace bimetal::comm

#include "bimetal/comm/algorithms/two_level.h"

#include <algorithm>

#include "bimetal/comm/algorithms/ring.h"
#include "bimetal/comm/algorithms/tree.h"

namespace bimetal::comm {

void two_level_all_reduce(Channel& channel, std::span<std::byte> data,
                          const std::vector<std::vector<int>>& islands,
                          const Reduction& reduction) {
  std::vector<int> leaders;
  const std::vector<int>* own = nullptr;
  for (const auto& island : islands) {
    leaders.push_back(island.front());
    if (std::ranges::find(island, channel.rank()) != island.end()) own = &island;
  }
  auto inside = channel.among(*own);
  tree_reduce(inside, data, 0, reduction.dtype, reduction.op);
  if (inside.rank() == 0) {
    auto between = channel.among(leaders);
    ring_all_reduce(between, even_segments(data, between.size(), reduction.dtype), reduction);
  }
  tree_broadcast(inside, data, 0);
}

}  // namespace bimetal::comm

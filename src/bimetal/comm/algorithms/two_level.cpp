#include "bimetal/comm/algorithms/two_level.h"

#include "bimetal/comm/algorithms/ring.h"
#include "bimetal/comm/algorithms/tree.h"
#include "bimetal/comm/topology.h"

namespace bimetal::comm {

void two_level_all_reduce(Channel& channel, std::span<std::byte> data,
                          const std::vector<std::vector<int>>& islands,
                          const Reduction& reduction) {
  auto inside = channel.among(island_of(islands, channel.rank()));
  tree_reduce(inside, data, 0, reduction.dtype, reduction.op);
  if (inside.rank() == 0) {
    auto between = channel.among(first_ranks(islands));
    ring_all_reduce(between, even_segments(data, between.size(), reduction.dtype), reduction);
  }
  tree_broadcast(inside, data, 0);
}

}  // namespace bimetal::comm

#include "bimetal/comm/compress/island_reduction.h"

#include <optional>

#include "bimetal/comm/shm/channel_guard.h"
#include "bimetal/comm/shm/lanes.h"
#include "bimetal/comm/topology.h"

namespace bimetal::comm {
namespace {

// What the first rank of the island adds to its own memory is the island's; the others' parts of a
// sum over all ranks are zeros.
void keep_nothing(const Compression& compression, std::size_t count) {
  if (!compression.memory) return;
  compression.memory->residual.assign(count, 0.0f);
  if (compression.momentum > 0) compression.memory->velocity.assign(count, 0.0f);
}

}  // namespace

void island_all_reduce(Channel& channel, std::span<float> data, ReduceOp op, const Islands& islands,
                       const Compression& compression, const CompressedSum& between) {
  auto inside = channel.among(island_of(islands.ranks, channel.rank()));
  ChannelGuard guard(inside);
  const auto bytes = std::as_writable_bytes(data);
  const Lanes one_lane{bytes.size(), 1};
  std::optional<LaneReduction> team;
  if (islands.team) {
    islands.team->begin(channel.call(), guard);
    team.emplace(*islands.team, bytes, one_lane, DType::float32, ReduceOp::sum, guard);
    team->reduce(0, one_lane.chunks());
  }
  if (inside.rank() == 0) {
    auto firsts_only = channel.among(first_ranks(islands.ranks));
    between(firsts_only, data);
  } else {
    keep_nothing(compression, data.size());
  }
  if (team) team->spread(0, one_lane.chunks());
  if (op == ReduceOp::sum) return;
  const auto ranks = static_cast<float>(channel.size());
  for (float& value : data) value /= ranks;
}

}  // namespace bimetal::comm

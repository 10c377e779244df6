#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <utility>

#include "bimetal/balance/shares.h"
#include "bimetal/plan/memory/memory_plan.h"

namespace bimetal::plan {
namespace {

/// The largest shard that a rank has room for, as its needs grow with the shard. With copies: its
/// own and the copied shard together, which need no more than if both were its own.
double largest_shard(const MemoryInput& input, const RankMemory& rank, const Room& room) {
  const auto own = asked_of(input, rank);
  const auto fits = [&](double shard) {
    auto load = rank.load;
    load.shard = shard;
    load.copied = 0;
    const auto use = memory_use(rank.facts, own, load, rank.program);
    return use.model() <= room.device && use.host <= room.host;
  };
  double least = 0, most = input.asked.copies;
  if (fits(most)) return most;
  for (int halving = 0; halving < 24; ++halving) {
    const double middle = (least + most) / 2;
    (fits(middle) ? least : most) = middle;
  }
  return least;
}

/// By rank, if each uses `part` of its room.
std::vector<double> largest_shards(const MemoryInput& input, const std::vector<Room>& rooms,
                                   double part) {
  std::vector<double> shards;
  for (std::size_t r = 0; r < rooms.size(); ++r) {
    const Room room{part * rooms[r].device, part * rooms[r].host};
    shards.push_back(largest_shard(input, input.ranks[r], room));
  }
  return input.asked.copies > 1 ? balance::ring_parts(shards) : shards;
}

bool keeps_on_host(const MemoryInput& input, const RankMemory& rank) {
  const auto own = asked_of(input, rank);
  const bool states = own.place_of_states() == Place::Host && !rank.load.host_is_device;
  return states || own.parameters_on_host(rank.load.host_is_device);
}

}  // namespace

std::vector<Room> rooms_of(const MemoryInput& input) {
  std::map<std::string, int> pools;
  for (const auto& rank : input.ranks) {
    ++pools[rank.pool];
    if (keeps_on_host(input, rank)) ++pools[rank.host_pool];
  }
  std::vector<Room> rooms;
  for (const auto& rank : input.ranks) {
    const double shared = rank.pool.empty() ? rank.room : rank.pool_room / pools[rank.pool];
    rooms.push_back({.device = std::min(rank.room, shared),
                     .host = rank.host_room / std::max(1, pools[rank.host_pool])});
  }
  return rooms;
}

std::vector<double> shards_by_room(const MemoryInput& input) {
  const auto rooms = rooms_of(input);
  const bool known = input.is_known() && std::ranges::none_of(rooms, [](const Room& r) {
                       return std::isinf(r.device);
                     });
  if (!known || input.asked.level == 0) return {};
  const auto sum = [](const std::vector<double>& shards) {
    return std::accumulate(shards.begin(), shards.end(), 0.0);
  };
  double too_little = 0, enough = 1;
  while (sum(largest_shards(input, rooms, enough)) < 1) {
    too_little = std::exchange(enough, 2 * enough);
    if (enough > 1e6) return {};  // rooms of nothing
  }
  for (int halving = 0; halving < 24; ++halving) {
    const double middle = (too_little + enough) / 2;
    (sum(largest_shards(input, rooms, middle)) < 1 ? too_little : enough) = middle;
  }
  // In thousandths of an equal shard: free memory differs a little from moment to moment, and equal
  // devices should have equal shards.
  const double steps = 1000.0 * static_cast<double>(rooms.size());
  auto shards = largest_shards(input, rooms, enough);
  for (auto& shard : shards) {
    if (shard > 0) shard = std::max(input.asked.copies > 1 ? 1.0 : 0.0, std::round(shard * steps));
  }
  const double all = sum(shards);
  for (auto& shard : shards) shard /= all;
  return shards;
}

}  // namespace bimetal::plan

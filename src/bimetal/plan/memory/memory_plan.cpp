#include "bimetal/plan/memory/memory_plan.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <utility>

#include "bimetal/balance/ring_parts.h"
#include "bimetal/base/error.h"

namespace bimetal::plan {
namespace {

constexpr double kRecomputed = 1.0 / 3;  // a forward more, of a step that is three of them

std::vector<Keeping> ways_of(const MemoryInput& input) {
  std::vector<Keeping> ways;
  const int copies = input.asked.copies;
  const int most = input.shardable ? 3 : 0;
  // Whoever asks for copies wants shards.
  for (int level = copies > 1 ? 1 : 0; level <= most; ++level) {
    for (const std::size_t at_once : {std::size_t{0}, std::size_t{1}}) {
      ways.push_back({.level = level, .copies = copies, .recomputed_at_once = at_once});
      if (level == 0 || !input.offloads || copies > 1) continue;
      ways.push_back({.level = level, .optimizer = Place::Disk, .recomputed_at_once = at_once});
      if (level < 3) continue;
      ways.push_back({.level = level,
                      .optimizer = Place::Disk,
                      .parameters = Place::Disk,
                      .recomputed_at_once = at_once});
    }
  }
  return ways;
}

/// How a rank keeps it: what recomputation has been asked for is each one's own.
Keeping of_rank(const Keeping& keeping, const RankMemory& rank, bool asked) {
  Keeping own = keeping;
  if (asked) own.recomputed_at_once = rank.units_at_once;
  return own;
}

double pieces_of(const RankLoad& load) {
  return std::max(1.0, std::ceil(load.samples / std::max(1.0, load.at_once)));
}

/// By all ranks together, of gathers and sums of `pieces` micro-batches and the update.
double sent_bytes(const ModelFacts& facts, int level, double pieces) {
  const double whole = facts.parameter_bytes();
  if (level < 3) return whole * (level < 2 ? 2 : 1 + pieces);
  double resident = 0, gathered = whole;
  for (const auto& unit : facts.units) {
    resident += static_cast<double>(unit.resident) * facts.element_bytes;
    gathered -= static_cast<double>(unit.halved) * (facts.element_bytes - facts.half_bytes);
  }
  return pieces * (2 * (gathered - resident) + whole) + resident;
}

// Each rank receives of every gather all but its own part, and the one with the least the most: a
// larger shard elsewhere is a longer gather.
double seconds_of(const MemoryInput& input, const Keeping& keeping, bool asked) {
  double compute = 0, pieces = 1, least_shard = 1, disk = 0;
  for (const auto& rank : input.ranks) {
    const auto own = of_rank(keeping, rank, asked);
    compute =
        std::max(compute, rank.compute_s * (own.recomputed_at_once > 0 ? 1 + kRecomputed : 1));
    if (rank.load.samples > 0) pieces = std::max(pieces, pieces_of(rank.load));
    least_shard = std::min(least_shard, rank.load.shard);
    const auto elements = static_cast<double>(rank.facts.elements());
    const double shard = rank.load.shard;
    double bytes = 0;
    if (keeping.optimizer == Place::Disk) bytes += 2 * shard * rank.facts.state_bytes * elements;
    if (keeping.parameters == Place::Disk) {
      bytes += (2 * pieces_of(rank.load) + 1) * shard * rank.facts.parameter_bytes();
    }
    disk = std::max(disk, bytes / kDiskBytesPerS);
  }
  double sent_s = 0;
  if (input.ranks.size() > 1 && input.link.bytes_per_s > 0) {
    const double bytes = sent_bytes(input.ranks.front().facts, keeping.level, pieces);
    sent_s =
        bytes / input.link.bytes_per_s *
        (1 - (keeping.level == 0 ? 1.0 / static_cast<double>(input.ranks.size()) : least_shard));
  }
  return compute + std::max(0.0, sent_s - compute / 2) + disk;
}

/// Each rank's `missing` of what it would need.
std::vector<double> missing_bytes(const MemoryInput& input, const Keeping& keeping,
                                  const std::vector<MemoryUse>& uses) {
  std::map<std::string, double> pools;
  for (std::size_t r = 0; r < input.ranks.size(); ++r) {
    if (!input.ranks[r].pool.empty()) pools[input.ranks[r].pool] += uses[r].model();
  }
  std::vector<double> missing;
  for (std::size_t r = 0; r < input.ranks.size(); ++r) {
    const auto& rank = input.ranks[r];
    // Buckets lie in memory that ranks share, which counts against no process's own limit.
    const double elsewhere = keeping.level == 0 && rank.load.host_is_device ? uses[r].buffers : 0;
    double bytes = std::max(0.0, uses[r].model() - elsewhere - rank.room);
    if (!rank.pool.empty()) {
      const double all = pools[rank.pool];
      // Of what is too much on a host, as large a part as the rank has of it all.
      if (all > rank.pool_room) {
        bytes = std::max(bytes, (all - rank.pool_room) * uses[r].model() / all);
      }
    }
    missing.push_back(bytes);
  }
  return missing;
}

/// Where there is room; on a host the ranks share that.
void keep_freed(const MemoryInput& input, std::vector<MemoryUse>& uses) {
  std::map<std::string, double> needed, sharing;
  for (std::size_t r = 0; r < uses.size(); ++r) {
    needed[input.ranks[r].pool] += uses[r].model();
    sharing[input.ranks[r].pool] += 1;
  }
  for (std::size_t r = 0; r < uses.size(); ++r) {
    const auto& rank = input.ranks[r];
    if (!rank.load.keeps_freed) continue;
    double free = rank.room - uses[r].model();
    if (!rank.pool.empty()) {
      free = std::min(free, (rank.pool_room - needed[rank.pool]) / sharing[rank.pool]);
    }
    uses[r].kept = kept_beside(uses[r].model(), free);
  }
}

KeptJob keep(const MemoryInput& input, const Keeping& keeping, bool asked) {
  KeptJob way;
  way.keeping = keeping;
  way.asked = asked;
  std::vector<double> shards;
  for (const auto& rank : input.ranks) shards.push_back(rank.load.shard);
  const auto copied = copied_shards(shards);
  for (std::size_t r = 0; r < input.ranks.size(); ++r) {
    const auto& rank = input.ranks[r];
    auto load = rank.load;
    load.copied = copied[r];
    way.uses.push_back(memory_use(rank.facts, of_rank(keeping, rank, asked), load, rank.program));
  }
  way.missing = missing_bytes(input, keeping, way.uses);
  keep_freed(input, way.uses);
  way.added_s = seconds_of(input, keeping, asked);
  return way;
}

/// Of a rank whose needs grow with its shard: the largest one that needs no more than `bytes`; with
/// copies its own and the copied one together, which need no more than if both were its own.
double largest_shard(const MemoryInput& input, const RankMemory& rank, double bytes) {
  const auto needs = [&](double shard) {
    auto load = rank.load;
    load.shard = shard;
    load.copied = 0;
    const auto own = of_rank(input.asked, rank, /*asked=*/true);
    return memory_use(rank.facts, own, load, rank.program).model();
  };
  double least = 0, most = input.asked.copies;
  if (needs(most) <= bytes) return most;
  for (int halving = 0; halving < 24; ++halving) {
    const double middle = (least + most) / 2;
    (needs(middle) <= bytes ? least : most) = middle;
  }
  return least;
}

/// By rank, if each uses `part` of its room.
std::vector<double> largest_shards(const MemoryInput& input, const std::vector<double>& rooms,
                                   double part) {
  std::vector<double> shards;
  for (std::size_t r = 0; r < rooms.size(); ++r) {
    shards.push_back(largest_shard(input, input.ranks[r], part * rooms[r]));
  }
  return input.asked.copies > 1 ? balance::ring_parts(shards) : shards;
}

/// Ranks that share a pool have equal parts of it.
std::vector<double> rooms_of(const MemoryInput& input) {
  std::map<std::string, int> pools;
  for (const auto& rank : input.ranks) ++pools[rank.pool];
  std::vector<double> rooms;
  for (const auto& rank : input.ranks) {
    const double shared = rank.pool.empty() ? rank.room : rank.pool_room / pools[rank.pool];
    rooms.push_back(std::min(rank.room, shared));
  }
  return rooms;
}

}  // namespace

std::vector<double> copied_shards(const std::vector<double>& shards) {
  std::vector<std::size_t> ring;
  for (std::size_t r = 0; r < shards.size(); ++r) {
    if (shards[r] > 0) ring.push_back(r);
  }
  std::vector<double> copied(shards.size(), 0.0);
  if (ring.size() < 2) return copied;
  for (std::size_t at = 0; at < ring.size(); ++at) {
    copied[ring[(at + 1) % ring.size()]] = shards[ring[at]];
  }
  return copied;
}

std::vector<double> shards_by_room(const MemoryInput& input) {
  const auto rooms = rooms_of(input);
  const bool known = std::ranges::none_of(rooms, [](double room) { return std::isinf(room); }) &&
                     std::ranges::none_of(input.ranks, [](const RankMemory& rank) {
                       return rank.facts.units.empty();
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
  // In thousandths of an equal shard: what is free differs a little from moment to moment, and
  // equal devices should have equal shards.
  const double steps = 1000.0 * static_cast<double>(rooms.size());
  auto shards = largest_shards(input, rooms, enough);
  for (auto& shard : shards) {
    if (shard > 0) shard = std::max(input.asked.copies > 1 ? 1.0 : 0.0, std::round(shard * steps));
  }
  const double all = sum(shards);
  for (auto& shard : shards) shard /= all;
  return shards;
}

double KeptJob::most_missing() const {
  return missing.empty() ? 0 : *std::ranges::max_element(missing);
}

MemoryInput at_least(MemoryInput input, bool may_recompute) {
  for (auto& rank : input.ranks) {
    rank.load.at_once = std::min(1.0, rank.load.at_once);
    rank.load.rehearsed = 0;  // step_probe.h gets by with what there is
    if (may_recompute) rank.units_at_once = 1;
  }
  return input;
}

bool clearly_fails(const MemoryInput& input, const MemoryPlan& plan) {
  constexpr double kDoubt = 0.1;
  for (std::size_t r = 0; r < input.ranks.size(); ++r) {
    const double room = std::min(input.ranks[r].room, input.ranks[r].pool_room);
    if (plan.asked().missing[r] > kDoubt * room) return true;
  }
  return false;
}

MemoryPlan plan_memory(const MemoryInput& input) {
  if (input.ranks.empty()) {
    throw Error(ErrorCode::InvalidArgument, "a plan of memory needs at least one rank");
  }
  MemoryPlan plan;
  plan.ways.push_back(keep(input, input.asked, true));
  for (const auto& keeping : ways_of(input)) plan.ways.push_back(keep(input, keeping, false));
  for (std::size_t i = 0; i < plan.ways.size(); ++i) {
    if (!plan.ways[i].fits()) continue;
    // What was asked for is first: another must be cheaper to be taken.
    if (!plan.best || plan.ways[i].added_s < plan.ways[*plan.best].added_s * (1 - kWorthwhile)) {
      plan.best = i;
    }
  }
  double plainest = plan.ways.front().added_s;
  for (const auto& way : plan.ways) plainest = std::min(plainest, way.added_s);
  for (auto& way : plan.ways) way.added_s -= plainest;
  return plan;
}

}  // namespace bimetal::plan

#include "bimetal/plan/memory/memory_plan.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <utility>

#include "bimetal/balance/shares.h"
#include "bimetal/base/error.h"

namespace bimetal::plan {
namespace {

std::vector<Keeping> ways_of(const MemoryInput& input) {
  const int copies = input.asked.copies;
  std::vector<Place> elsewhere;
  const bool accelerators = std::ranges::any_of(
      input.ranks, [](const RankMemory& rank) { return !rank.load.host_is_device; });
  const bool offloads = input.offloads && copies == 1;
  if (offloads && accelerators) elsewhere.push_back(Place::Host);
  if (offloads) elsewhere.push_back(Place::Disk);
  // A job that asks for copies needs shards.
  auto ways = keepings(copies > 1 ? 1 : 0, input.shardable ? 3 : 0, elsewhere,
                       input.in_backward && copies == 1);
  for (auto& way : ways) way.copies = copies;
  return ways;
}

/// Applies the job's own settings, as far as all ranks have them in common.
void take_asked(const MemoryInput& input, KeptJob& way) {
  const auto& first = input.ranks.front();
  way.keeping = input.asked;
  way.asked = true;
  way.unlike = std::ranges::any_of(input.ranks, [&](const RankMemory& rank) {
    return rank.optimizer != first.optimizer || rank.parameters != first.parameters;
  });
  if (way.unlike) return;
  way.keeping.optimizer = first.optimizer;
  way.keeping.parameters = first.parameters;
}

double pieces_of(const RankLoad& load) {
  return std::max(1.0, std::ceil(load.samples / std::max(1.0, load.at_once)));
}

/// By all ranks together, of gathers and sums of `pieces` micro-batches and the update.
double sent_bytes(const ModelFacts& facts, const Keeping& keeping, double pieces) {
  const double whole = facts.parameter_bytes(), gathered = gathered_bytes(facts, keeping);
  const double resident = facts.resident_bytes();
  if (keeping.level < 3) return gathered + whole * (keeping.level < 2 ? 1 : pieces);
  return pieces * (2 * (gathered - resident) + whole) + resident;
}

/// To read and write a shard's states and parameters where they are not on the device. A host
/// reads states and gradients and writes states; parameters come and go.
double seconds_elsewhere(const RankMemory& rank, const Keeping& own) {
  const double elements = rank.load.shard * static_cast<double>(rank.facts.elements());
  const double states = elements * rank.facts.state_bytes;
  const double parameters = elements * rank.facts.element_bytes;
  const double gathers = 2 * pieces_of(rank.load);
  double host = 0;
  if (!rank.load.host_is_device) {
    const bool stepped = own.optimizer != Place::Device || own.parameters != Place::Device;
    if (stepped) host += parameters + 2 * (states + parameters);
    if (own.parameters == Place::Host) host += gathers * parameters;
  }
  return disk_seconds(rank.facts, own, elements, gathers) + host / kHostBytesPerS;
}

// Each rank receives of every gather all but its own part, and the one with the least the most: a
// larger shard elsewhere is a longer gather.
double seconds_of(const MemoryInput& input, const std::vector<Keeping>& keepings) {
  double compute = 0, pieces = 1, least_shard = 1, elsewhere = 0;
  for (std::size_t r = 0; r < input.ranks.size(); ++r) {
    const auto& rank = input.ranks[r];
    const auto& own = keepings[r];
    compute =
        std::max(compute, rank.compute_s * (own.recomputed_at_once > 0 ? kStepRecomputed : 1));
    if (rank.load.samples > 0) pieces = std::max(pieces, pieces_of(rank.load));
    least_shard = std::min(least_shard, rank.load.shard);
    elsewhere = std::max(elsewhere, seconds_elsewhere(rank, own));
  }
  const int level = keepings.front().level;
  double sent_s = 0;
  if (input.ranks.size() > 1 && input.link.bytes_per_s > 0) {
    const double bytes = sent_bytes(input.ranks.front().facts, keepings.front(), pieces);
    sent_s = bytes / input.link.bytes_per_s *
             (1 - (level == 0 ? 1.0 / static_cast<double>(input.ranks.size()) : least_shard));
  }
  return compute + left_to_wait_for(sent_s, 0, kHidden * compute) + elsewhere;
}

std::map<std::string, double> needed_of_pools(const MemoryInput& input,
                                              const std::vector<MemoryUse>& uses) {
  std::map<std::string, double> needed;
  for (std::size_t r = 0; r < uses.size(); ++r) {
    needed[input.ranks[r].pool] += uses[r].model();
    needed[input.ranks[r].host_pool] += uses[r].host;
  }
  return needed;
}

/// Where there is room. Ranks of one host share it.
void keep_freed(const MemoryInput& input, std::vector<MemoryUse>& uses) {
  auto needed = needed_of_pools(input, uses);
  std::map<std::string, double> sharing;
  for (const auto& rank : input.ranks) sharing[rank.pool] += 1;
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

/// `way` with its figures, where each rank keeps the job in its own way.
KeptJob kept(const MemoryInput& input, KeptJob way, const std::vector<Keeping>& keepings) {
  std::vector<double> shards;
  for (const auto& rank : input.ranks) shards.push_back(rank.load.shard);
  const auto copied = copied_shards(shards);
  for (std::size_t r = 0; r < input.ranks.size(); ++r) {
    const auto& rank = input.ranks[r];
    auto load = rank.load;
    load.copied = copied[r];
    way.uses.push_back(memory_use(rank.facts, keepings[r], load, rank.program));
  }
  for (const auto& [device, host] : missing_room(input, way.keeping, way.uses)) {
    way.missing.push_back(std::max(device, host));
  }
  keep_freed(input, way.uses);
  way.added_s = seconds_of(input, keepings);
  return way;
}

KeptJob kept_alike(const MemoryInput& input, const Keeping& keeping) {
  return kept(input, {.keeping = keeping}, std::vector(input.ranks.size(), keeping));
}

KeptJob kept_as_asked(const MemoryInput& input) {
  KeptJob way;
  take_asked(input, way);
  std::vector<Keeping> keepings;
  for (const auto& rank : input.ranks) keepings.push_back(asked_of(input, rank));
  return kept(input, std::move(way), keepings);
}

}  // namespace

std::vector<Keeping> keepings(int least, int most, const std::vector<Place>& elsewhere,
                              bool in_backward) {
  std::vector<Keeping> all;
  for (int level = least; level <= most; ++level) {
    for (const std::size_t at_once : {std::size_t{0}, std::size_t{1}}) {
      const Keeping here{.level = level, .recomputed_at_once = at_once};
      all.push_back(here);
      if (level == 3 && in_backward) (all.emplace_back(here)).update_in_backward = true;
      for (const auto place : elsewhere) {
        if (level == 0) break;
        (all.emplace_back(here)).optimizer = place;
        if (level < 3) continue;
        auto& both = all.emplace_back(here);
        both.optimizer = both.parameters = place;
      }
    }
  }
  return all;
}

Keeping asked_of(const MemoryInput& input, const RankMemory& rank) {
  auto own = input.asked;
  own.optimizer = rank.optimizer;
  own.parameters = rank.parameters;
  own.recomputed_at_once = rank.units_at_once;
  return own;
}

std::vector<Room> missing_room(const MemoryInput& input, const Keeping& keeping,
                               const std::vector<MemoryUse>& uses) {
  const auto pools = needed_of_pools(input, uses);
  const auto part = [&](const std::string& pool, double room, double own) {
    if (pool.empty() || own <= 0) return 0.0;
    const double all = pools.at(pool);
    return all > room ? (all - room) * own / all : 0.0;
  };
  std::vector<Room> missing;
  for (std::size_t r = 0; r < input.ranks.size(); ++r) {
    const auto& rank = input.ranks[r];
    // Buckets lie in memory that ranks share, which counts against no process's own limit.
    const double elsewhere = keeping.level == 0 && rank.load.host_is_device ? uses[r].buffers : 0;
    missing.push_back({.device = std::max({0.0, uses[r].model() - elsewhere - rank.room,
                                           part(rank.pool, rank.pool_room, uses[r].model())}),
                       .host = part(rank.host_pool, rank.host_room, uses[r].host)});
  }
  return missing;
}

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

double KeptJob::most_missing() const {
  return missing.empty() ? 0 : *std::ranges::max_element(missing);
}

MemoryInput at_least(MemoryInput input, bool recompute) {
  for (auto& rank : input.ranks) {
    rank.load.at_once = std::min(1.0, rank.load.at_once);
    rank.load.rehearsed = 0;  // step_probe.h makes do with the memory there is
    if (recompute && rank.may_recompute) rank.units_at_once = 1;
  }
  return input;
}

bool lacks_much(double needed, double missing) {
  return missing > kDoubt * (needed - missing);
}

bool fits_surely(const MemoryInput& input, const KeptJob& way) {
  auto uses = way.uses;
  for (auto& use : uses) {
    for (auto* bytes : {&use.parameters, &use.gradients, &use.optimizer, &use.activations,
                        &use.buffers, &use.host}) {
      *bytes *= 1 + kDoubt;
    }
  }
  return std::ranges::all_of(missing_room(input, way.keeping, uses), [](const Room& missing) {
    return missing.device <= 0 && missing.host <= 0;
  });
}

bool clearly_fails(const MemoryInput& input, const MemoryPlan& plan) {
  const auto& asked = plan.asked();
  const auto missing = missing_room(input, asked.keeping, asked.uses);
  for (std::size_t r = 0; r < missing.size(); ++r) {
    if (lacks_much(asked.uses[r].model(), missing[r].device)) return true;
    if (lacks_much(asked.uses[r].host, missing[r].host)) return true;
  }
  return false;
}

MemoryPlan plan_memory(const MemoryInput& input) {
  if (input.ranks.empty()) {
    throw Error(ErrorCode::InvalidArgument, "a plan of memory needs at least one rank");
  }
  MemoryPlan plan;
  plan.ways.push_back(kept_as_asked(input));
  for (const auto& keeping : ways_of(input)) plan.ways.push_back(kept_alike(input, keeping));
  // The job's own settings come first: another way must be cheaper to be taken.
  const auto take_cheaper = [&](std::optional<std::size_t>& best, std::size_t i) {
    if (!best || plan.ways[i].added_s < plan.ways[*best].added_s * (1 - kWorthwhile)) best = i;
  };
  for (std::size_t i = 0; i < plan.ways.size(); ++i) {
    if (plan.ways[i].fits()) take_cheaper(plan.best, i);
    if (fits_surely(input, plan.ways[i])) take_cheaper(plan.sure, i);
  }
  double plainest = plan.ways.front().added_s;
  for (const auto& way : plan.ways) plainest = std::min(plainest, way.added_s);
  for (auto& way : plan.ways) way.added_s -= plainest;
  return plan;
}

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

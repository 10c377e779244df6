#pragma once
// Which ways to keep a job fit: the memory of each rank for each way, and the cheapest way that
// fits. Pure; docs/planning.md.

#include <algorithm>
#include <cstdint>
#include <limits>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "bimetal/plan/memory/memory_use.h"
#include "bimetal/plan/plan.h"

namespace bimetal::plan {

/// A rank as its memory is concerned.
struct RankMemory {
  std::string name = {};  ///< for messages: "rank 1 (cpu:memory=2GiB)"
  ModelFacts facts = {};  ///< as measured: on its device, in its precision
  RankLoad load = {};
  std::size_t units_at_once = 0;  ///< that it recomputes together as configured; 0: none
  bool may_recompute = false;     ///< each unit, where memory fails: train.recompute = "auto"
  double program = 0;             ///< bytes that its process has without a model
  double compute_s = 0;           ///< of its share, without recomputation
  /// The configured places of the optimizer's state, and of its shard of the parameters.
  Place optimizer = Place::Device, parameters = Place::Device;
  /// Bytes that it may have beside the program: its own limit ("memory=", an accelerator's memory).
  double room = std::numeric_limits<double>::infinity();
  /// Ranks with the same pool share its room: the free memory of their host. Empty: none.
  std::string pool = {};
  double pool_room = std::numeric_limits<double>::infinity();
  /// The same for data that an accelerator keeps in its host's memory: the pool of that host's
  /// CPUs.
  std::string host_pool = {};
  double host_room = std::numeric_limits<double>::infinity();
};

struct MemoryInput {
  std::vector<RankMemory> ranks = {};
  LinkSpeed link = {};       ///< ignored where there is one rank
  Keeping asked = {};        ///< level, copies, update; the rest is each rank's own: asked_of()
  bool shardable = true;     ///< false: the job has something that refuses levels
  bool offloads = true;      ///< its optimizer can be kept on a disk
  bool in_backward = false;  ///< level 3 may update in backward: zero.update
  /// The job's keys as it has them, "zero.level=1": what advice need not say.
  std::set<std::string> said = {};
  bool said_by_workers = false;  ///< some worker's spec offloads, which goes before the job's keys

  /// Whether all ranks could measure the model's units.
  bool is_known() const {
    return std::ranges::none_of(ranks, [](const auto& rank) { return rank.facts.units.empty(); });
  }
};

/// Ways of ZeRO's levels `least` to `most`, with activations computed again or not, and movable
/// state in one of these places.
std::vector<Keeping> keepings(int least, int most, const std::vector<Place>& elsewhere,
                              bool in_backward = false);

/// How this rank of it keeps the job as configured.
Keeping asked_of(const MemoryInput& input, const RankMemory& rank);

/// Bytes on a device and, where that has memory of its own, on its host.
struct Room {
  double device = 0, host = 0;
};

/// Each rank's room if ranks with the same pool get equal parts of it. Accelerators that keep
/// something on their host get parts of that host's pool, too.
std::vector<Room> rooms_of(const MemoryInput& input);

/// The room that these `uses` lack, by rank. A pool's excess is divided in proportion to the ranks'
/// use of it.
std::vector<Room> missing_room(const MemoryInput& input, const Keeping& keeping,
                               const std::vector<MemoryUse>& uses);

/// One way to keep a job.
struct KeptJob {
  Keeping keeping = {};
  bool asked = false;
  /// Offloading differs by rank, and `keeping` leaves it out.
  bool unlike = false;
  std::vector<MemoryUse> uses = {};  ///< by rank
  std::vector<double> missing = {};  ///< by rank: bytes; 0: it fits
  double added_s = 0;                ///< to a step, as it costs more than the plainest way
  double most_missing() const;
  bool fits() const { return most_missing() <= 0; }
};

struct MemoryPlan {
  std::vector<KeptJob> ways = {};   ///< the one that was asked for first, then from level 0 on
  std::optional<std::size_t> best;  ///< the cheapest that fits; nothing: none does
  std::optional<std::size_t> sure;  ///< the cheapest that fits_surely()
  const KeptJob& asked() const { return ways.front(); }
};

/// Error(InvalidArgument) without ranks.
MemoryPlan plan_memory(const MemoryInput& input);

/// The fraction of the whole that each rank keeps a copy of: the shard of the rank before it, in
/// the ring of those that have one (parallel/shard/shard_copies.h). None where fewer than two have.
std::vector<double> copied_shards(const std::vector<double>& shards);

/// The fraction of the shards that each rank should keep, so that all use the same fraction of
/// their memory; the sum is 1. Needs that do not depend on the shard (activations, gathers,
/// buffers) are taken off first. Empty if some rank's needs or room are not known, or nothing is in
/// shards. With copies each has room for its own shard and that of the one before it in the ring,
/// or for none (balance::ring_parts).
std::vector<double> shards_by_room(const MemoryInput& input);

/// The same job with the least memory: micro-batches of one sample and, if `recompute` allows it,
/// each unit computed again on ranks that may do so. It leaves out the steps that are measured
/// before training, because they make do with the memory there is. Training falls back to this by
/// itself if memory fails and a step can be repeated, which updates in backward rule out.
MemoryInput at_least(MemoryInput input, bool recompute);

/// The fraction of the memory by which a plan may be wrong.
inline constexpr double kDoubt = 0.1;

/// Whether the part of `needed` bytes that is `missing` is more than that: by the rank's own part,
/// not by its whole pool.
bool lacks_much(double needed, double missing);

/// Whether it fits even if it needs so much more.
bool fits_surely(const MemoryInput& input, const KeptJob& way);

/// Whether the job's own way fails by more than that.
bool clearly_fails(const MemoryInput& input, const MemoryPlan& plan);

/// "level 3, states on disk, recomputed".
std::string describe(const Keeping& keeping);
std::string describe(const KeptJob& way);

/// The job file's keys that ask for it, whatever else a job has: "zero.level=3", ….
std::vector<std::string> keys_of(const Keeping& keeping);

/// Those of `keys` that a job does not say already, in one line.
std::string unsaid(const std::vector<std::string>& keys, const std::set<std::string>& said);

/// Says whether the job's own way fits and, if it does not, by how much and what would help. Lines.
std::string memory_advice(const MemoryInput& input, const MemoryPlan& plan);

/// "1.25 GiB", "300 MiB".
std::string bytes_text(double bytes);

}  // namespace bimetal::plan

#pragma once
// What a device of a pipeline's stage needs in memory.

#include <cstddef>
#include <limits>
#include <span>
#include <vector>

#include "bimetal/parallel/schedule/schedule.h"
#include "bimetal/plan/memory/memory_use.h"
#include "bimetal/plan/model_facts.h"

namespace bimetal::plan {

struct StageLoad {
  double replicas = 1;
  double shard = 1 / replicas;  ///< its part of what they have in shards, 0…1
  double at_once = 1;           ///< samples of a micro-batch that this device computes
  double in_flight = 1;         ///< micro-batches whose activations it has at a time
  Keeping keeping = {};         ///< level over the replicas
  /// Gradients travel in flat tensors of at least so much, level 3's unit by unit.
  double bucket_bytes = 0;
  bool host_is_device = true;  ///< as RankLoad has it
  friend bool operator==(const StageLoad&, const StageLoad&) = default;
};

/// Units [begin, end).
struct UnitRange {
  std::size_t begin = 0, end = 0;
};

/// Most micro-batches whose activations a stage has (schedule.h).
double in_flight(parallel::schedule::Kind kind, std::size_t stage, std::size_t stages,
                 int micro_batches);

/// Of the `pieces` of the model that one device has, by kind, at their peak: parameters, gradients
/// (those of earlier micro-batches wait), states, buckets of replicas or gradients on their way,
/// and activations: of all micro-batches in flight what forward leaves, what a unit or a group of
/// units that is computed again needs for a time, what autocast copies of parameters and the
/// copies' gradients. The last piece of the model has tensors that units before it use, too.
MemoryUse stage_use(const ModelFacts& facts, std::span<const UnitRange> pieces,
                    const StageLoad& load);
/// All of that together, of one piece.
double stage_bytes(const ModelFacts& facts, const UnitRange& piece, const StageLoad& load);

/// A device that is to have a stage.
struct StageDevice {
  const ModelFacts* facts = nullptr;
  StageLoad load = {};
  double room = 0;  ///< bytes
  double host_room = std::numeric_limits<double>::infinity();  ///< of what it keeps on its host
  friend bool operator==(const StageDevice&, const StageDevice&) = default;
};

/// Whether all of these have room for `pieces` pieces like the units [begin, end), of which one is
/// at work at a time: for every end from begin + 1 on.
std::vector<bool> fitting_ends(std::span<const StageDevice> devices, std::size_t begin,
                               double pieces = 1);

}  // namespace bimetal::plan

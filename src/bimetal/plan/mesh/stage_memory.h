#pragma once
// The memory that a device of a pipeline's stage needs.

#include <cstddef>
#include <limits>
#include <span>
#include <vector>

#include "bimetal/parallel/schedule/schedule.h"
#include "bimetal/plan/memory/memory_use.h"
#include "bimetal/plan/model_facts.h"

namespace bimetal::plan {

/// Micro-batches whose activations a device has at a time.
struct InFlight {
  double each = 1;  ///< of each of its pieces
  /// Or, interleaved: how many of each, wherever that may be most (schedule/in_flight.h).
  std::vector<std::vector<int>> moments = {};

  InFlight(double of_each = 1) : each(of_each) {}
  friend bool operator==(const InFlight&, const InFlight&) = default;
};

struct StageLoad {
  double replicas = 1;
  double shard = 1 / replicas;  ///< its part of what they have in shards, 0…1
  double at_once = 1;           ///< samples of a micro-batch that this device computes
  InFlight in_flight = {};
  Keeping keeping = {};  ///< level over the replicas
  /// Gradients travel in flat tensors of at least so much, level 3's unit by unit.
  double bucket_bytes = 0;
  bool host_is_device = true;  ///< as RankLoad has it
  friend bool operator==(const StageLoad&, const StageLoad&) = default;
};

using parallel::schedule::UnitRange;

/// Most micro-batches whose activations stage `stage` has (schedule.h), of a shape without windows.
/// Micro-batches that the schedule cannot run count as the next that it can.
InFlight in_flight(parallel::schedule::Kind kind, int stage,
                   const parallel::schedule::Shape& shape);

/// Of the `pieces` of the model that one device has, by kind, at their peak: parameters, gradients
/// (those of earlier micro-batches wait), states, buckets of replicas or gradients on their way,
/// and activations: of all micro-batches in flight what forward leaves, what a unit or a group of
/// units that is computed again needs for a time, what autocast copies of parameters and the
/// copies' gradients. The last piece of the model has tensors that units before it use, too.
MemoryUse stage_use(const ModelFacts& facts, std::span<const UnitRange> pieces,
                    const StageLoad& load);
/// Elements that a device with these pieces has of other devices' units: what those before the last
/// piece of the model share with it.
double tied_elements(const ModelFacts& facts, std::span<const UnitRange> pieces);

/// A device that is to have a stage.
struct StageDevice {
  const ModelFacts* facts = nullptr;
  StageLoad load = {};
  double room = 0;                                             ///< bytes
  double host_room = std::numeric_limits<double>::infinity();  ///< of what it keeps on its host
  friend bool operator==(const StageDevice&, const StageDevice&) = default;
};

/// Whether all of these have room for the units [begin, end), or, interleaved, for as many pieces
/// like that as they have, of which one is at work at a time: for every end from begin + 1 on.
std::vector<bool> fitting_ends(std::span<const StageDevice> devices, std::size_t begin);

}  // namespace bimetal::plan

#pragma once
// What a device of a pipeline's stage needs in memory.

#include <cstddef>
#include <span>

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
};

/// Units [begin, end).
struct UnitRange {
  std::size_t begin = 0, end = 0;
};

/// Most micro-batches whose activations a stage has (schedule.h).
double in_flight(parallel::schedule::Kind kind, std::size_t stage, std::size_t stages,
                 int micro_batches);

/// What a unit adds to a stage that has it: parameters, what autocast copies of them and, unless
/// units are computed again, the copies' gradients; gradients (those of earlier micro-batches
/// wait), states, buckets of replicas, and activations of all micro-batches in flight.
double unit_bytes(const ModelFacts& facts, std::size_t unit, const StageLoad& load);

/// The most that one unit of the model needs for the time of its own forward or backward: from
/// level 1 on with gradients that are on their way.
double passing_bytes(const ModelFacts& facts, const StageLoad& load);

/// What the last stage, from unit `begin` on, has of tensors that units before it use, too: GPT-2's
/// head of the embedding.
double tied_bytes(const ModelFacts& facts, std::size_t begin, const StageLoad& load);

/// Of the units [begin, end) together, at their peak.
double stage_bytes(const ModelFacts& facts, std::size_t begin, std::size_t end,
                   const StageLoad& load);
/// Of several pieces of the model that one device has.
double stage_bytes(const ModelFacts& facts, std::span<const UnitRange> pieces,
                   const StageLoad& load);

/// What to multiply a replica's bytes by, which has `room` for them, where all of its stage are
/// held to the `least` room that one of them has.
double scale_to(double least, double room);

}  // namespace bimetal::plan

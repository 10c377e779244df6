#pragma once
// The figures that a plan of memory needs of each rank, and whether a run may begin.

#include <cstdint>
#include <vector>

#include "bimetal/comm/group.h"
#include "bimetal/device/device.h"
#include "bimetal/job/job_config.h"
#include "bimetal/plan/memory/memory_plan.h"
#include "bimetal/task/task.h"
#include "bimetal/train/measure/unit_measure.h"
#include "bimetal/train/trainer.h"

namespace bimetal::train {

/// For a rank before it has a model: the bytes of its process (libraries, data), and those that it
/// may have beside them; 0: not known.
plan::RankMemory measure_room(const device::Place& place, const TrainerOptions& options);

/// Whether the job has nothing that refuses levels of ZeRO.
bool may_shard(const job::JobConfig& job);

/// The ranks' work, and the state that they keep.
struct MemoryQuestion {
  const job::JobConfig& job;
  const job::WorkerSpec& worker;
  const task::Task& task;
  Computing on;
  plan::RankMemory room;            ///< measure_room()
  std::int64_t batch = 0;           ///< weight of a global batch
  std::vector<double> shards = {};  ///< weights, by rank; empty: all alike
  Timed timed = Timed::nothing;     ///< the units' seconds are asked for, too
  std::int64_t at_once = 0;         ///< as UnitMeasureOptions has it
  bool by_units = false;  ///< as UnitMeasureOptions has it; where there is little room, in any case
  /// Also what becomes of units whose tensors are in parts: with a model that is whole for it, at
  /// level 3, too.
  bool parts = false;
};

/// Every rank makes a dry run of its units and tells all. Ranks whose device cannot even hold that
/// have facts without units. Collective.
plan::MemoryInput measure_memory(comm::Group group, const MemoryQuestion& question);

}  // namespace bimetal::train

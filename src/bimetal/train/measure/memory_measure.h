#pragma once
// What a plan of memory needs of each rank, and whether a run may begin.

#include <span>
#include <string>

#include "bimetal/comm/group.h"
#include "bimetal/device/device.h"
#include "bimetal/job/job_config.h"
#include "bimetal/plan/memory/memory_plan.h"
#include "bimetal/precision/precision.h"
#include "bimetal/task/task.h"
#include "bimetal/train/trainer.h"

namespace bimetal::train {

/// Of a rank, before it has a model.
struct RankRoom {
  double program = 0;  ///< bytes that its process has: libraries, data
  double room = 0;     ///< that it may have beside them
  std::string pool;    ///< who shares what follows
  double pool_room = 0;
  std::string host_pool;  ///< of an accelerator: the same of its host's memory
  double host_room = 0;
};

RankRoom measure_room(const device::Place& place, const TrainerOptions& options);

/// Whether the job has nothing that refuses levels of ZeRO.
bool may_shard(const job::JobConfig& job);

/// What the ranks do and keep, by rank where there are several numbers.
struct MemoryQuestion {
  const job::JobConfig& job;
  const job::WorkerSpec& worker;
  const task::Task& task;
  device::Place place;
  precision::Precision precision = precision::Precision::float32;
  RankRoom room;
  std::span<const std::int64_t> shares = {};  ///< of the global batch's weight
  std::span<const double> shards = {};        ///< weights
  bool timed = false;                         ///< the units' seconds are asked for, too
  bool by_units = false;  ///< as UnitMeasureOptions has it; where there is little room, in any case
  /// Also what becomes of units whose tensors are in parts: with a model that is whole for it, at
  /// level 3, too.
  bool parts = false;
};

/// Every rank makes a dry run of its units and tells all. Ranks whose device cannot even hold that
/// have facts without units. Collective.
plan::MemoryInput measure_memory(comm::Group group, const MemoryQuestion& question);

}  // namespace bimetal::train

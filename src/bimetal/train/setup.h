#pragma once
// The parts of a training run that are made once, before the first step.

#include <memory>

#include "bimetal/c10d/island.h"
#include "bimetal/comm/group.h"
#include "bimetal/device/place.h"
#include "bimetal/job/job_config.h"
#include "bimetal/task/catalog/job_task.h"
#include "bimetal/train/trainer.h"

namespace bimetal::train {

/// Applies the worker's limits to this process and picks its device. Errors: Unsupported for a
/// device that is not there or that does not know the job's dtype, and job::require_possible()'s.
device::Place choose_place(const job::JobConfig& job, const TrainerOptions& options);

/// The job's task with its data, the same on every rank, loaded. Collective; tells the observer of
/// its phase. Errors: those of require_same_job, share_dataset and task::make_task.
std::shared_ptr<const task::JobTask> load_shared_task(comm::Group group, const job::JobConfig& job,
                                                      const TrainerOptions& options,
                                                      progress::Observer& observer);

/// The model with the parameters that the seed gives, the same on every rank whatever was drawn
/// before. Leaves torch's default generators just behind them.
task::Model make_seeded_model(const task::Task& task, std::uint64_t seed,
                              const device::Place& place);

/// Ranks that sum their gradients by a vendor's library; nullptr where that is not to be: a
/// compressed exchange needs each rank's own gradients, and shards, stages and parts do without.
/// Collective.
std::shared_ptr<c10d::Island> find_island(const job::JobConfig& job, comm::Group group,
                                          const torch::Device& device);

}  // namespace bimetal::train

#pragma once
// The parts of a training run that are made once, before the first step.

#include <memory>

#include "bimetal/comm/compress/compressed_all_reduce.h"
#include "bimetal/comm/group.h"
#include "bimetal/device/device.h"
#include "bimetal/job/job_config.h"
#include "bimetal/precision/precision.h"
#include "bimetal/task/catalog/job_task.h"
#include "bimetal/task/task.h"
#include "bimetal/train/trainer.h"

namespace bimetal::train {

/// A rank's device, and how it computes.
struct Computing {
  torch::Device device{torch::kCPU};
  torch::Dtype dtype = torch::kFloat32;
  precision::Precision precision = precision::Precision::float32;
  double speed = 1.0;          ///< emulated: see device::pause_for_speed
  bool channels_last = false;  ///< what convolutions get: task::in_channels_last
};

/// Applies the worker's limits to this process and picks its device. Errors: Unsupported for a
/// device that is not there or that does not know the job's dtype, and job::require_possible()'s.
device::Place choose_place(const job::JobConfig& job, const TrainerOptions& options);

/// The job's task with its data, the same on every rank, loaded. Collective; tells the observer of
/// its phase. Errors: those of require_same_job, share_dataset and task::make_task.
std::shared_ptr<const task::JobTask> load_shared_task(comm::Group group, const job::JobConfig& job,
                                                      const TrainerOptions& options,
                                                      progress::Observer& observer);

/// A model at the start of a training.
struct StartingModel {
  task::Model model;
  /// Empty, or the trained parameters are hollow (parallel/shard/flat_parameters.h), so that the
  /// model is nowhere whole: makes their values again, unit by unit, in the device's memory.
  std::function<void(const task::UnitMade& made)> values = {};
};

/// A model of which only names and sizes are wanted: hollow where the task makes models by units.
/// Draws from torch's default generator.
task::Model make_model_of_sizes(const task::Task& task);

/// As make_seeded_model() makes it; hollow at level 3 and in stages, whose ranks keep a part of it,
/// if the task makes models by units and their tensors are whole.
StartingModel make_starting_model(const job::JobConfig& job,
                                  const std::shared_ptr<const task::Task>& task,
                                  const device::Place& place);

/// The model with the parameters that the seed gives, the same on every rank whatever was drawn
/// before. Leaves torch's default generators just behind them.
task::Model make_seeded_model(const task::Task& task, std::uint64_t seed,
                              const device::Place& place);

// How large a task's model is, before anybody makes one to train.

struct ModelSize {
  double elements = 0;    ///< of its parameters
  bool by_units = false;  ///< it can be made unit by unit, so that it is never whole
};

/// Makes a model whose parameters have no memory, or one that has, where it is not made by units.
ModelSize size_of_model(const task::Task& task);

// The effects of a job's compression of gradients on the exchange and on the optimizer.

/// With topk, SGD's momentum is applied before the largest elements are chosen (momentum
/// correction: docs/compression.md); a rank alone chooses nothing.
comm::CompressedAllReduceOptions gradient_compression(const job::JobConfig& job, int world_size);

/// job.train, without a momentum that gradient_compression() has taken over.
job::TrainConfig optimizer_config(const job::JobConfig& job, int world_size);

}  // namespace bimetal::train

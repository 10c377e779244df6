#pragma once
// A dry run of one micro-batch: the memory and time of each unit of a model.

#include <torch/csrc/api/include/torch/types.h>

#include <cstdint>
#include <optional>

#include "bimetal/job/job_config.h"
#include "bimetal/plan/model_facts.h"
#include "bimetal/task/task.h"
#include "bimetal/train/setup.h"

namespace bimetal::train {

/// The seconds that are asked for. `nothing`: none, so that there is one run of each size.
/// `passes`: those of passes. `all`: also those of a backward pass in two parts and of the
/// optimizer's update, which take longer.
enum class Timed { nothing, passes, all };

struct UnitMeasureOptions {
  Computing on = {};  ///< an emulated speed makes seconds longer
  Timed timed = Timed::all;
  std::int64_t at_once = 0;     ///< most samples that are computed at once; 0: as the job has it
  std::int64_t keep_below = 0;  ///< as zero.keep_below
  /// One unit's parameters are in memory at a time, where the task makes models by units: for those
  /// that this rank has no room for, or never has whole.
  bool by_units = false;
  /// Also what becomes of units whose tensors are in parts (part_measure.h): as long again.
  bool parts = false;
  bool sequences = false;  ///< and sequences between them (mesh.sequence_parallel)
};

/// Runs forward and backward of a few of the first training samples, in two numbers of them, with a
/// model of its own, whose gradients are dropped as soon as they come. The device must have room
/// for the parameters (or one unit's), and the activations of two samples. Nothing if it has not.
/// Draws from torch's default generator: seed it afterwards. Errors: whatever the model and the
/// task throw.
std::optional<plan::ModelFacts> measure_units(const job::TrainConfig& job, const task::Task& task,
                                              const UnitMeasureOptions& options);

/// The seconds of the job's optimizer for an element, as slow as emulated. Measured by updates of
/// up to so many elements, at most as many as no longer fit into a CPU's caches.
double update_seconds(const job::TrainConfig& job, std::int64_t elements, const Computing& on);

/// The state of `job`'s optimizer for each parameter of type `dtype`.
double optimizer_state_bytes(const job::TrainConfig& job, torch::Dtype dtype);

}  // namespace bimetal::train

#pragma once
// A dry run of one micro-batch: what each unit of a model needs in memory and time.

#include <torch/csrc/api/include/torch/types.h>

#include <cstdint>
#include <optional>

#include "bimetal/job/job_config.h"
#include "bimetal/plan/model_facts.h"
#include "bimetal/precision/precision.h"
#include "bimetal/task/task.h"

namespace bimetal::train {

struct UnitMeasureOptions {
  torch::Device device{torch::kCPU};
  torch::Dtype dtype = torch::kFloat32;
  precision::Precision precision = precision::Precision::float32;
  double speed = 1.0;           ///< emulated: seconds are longer by that
  bool timed = true;            ///< else seconds are of no use, and there is one run of each size
  std::int64_t keep_below = 0;  ///< as zero.keep_below
  /// One unit's parameters are in memory at a time, where the task makes models by units: for those
  /// that this rank has no room for, or never has whole.
  bool by_units = false;
  /// Also what becomes of units whose tensors are in parts (part_measure.h): as long again.
  bool parts = false;
  bool sequences = false;  ///< and sequences between them (mesh.sequence_parallel)
};

/// Runs forward and backward of a few of the first training samples, in two numbers of them, with a
/// model of its own whose gradients are dropped as soon as they come: the device must have room for
/// the parameters (or one unit's), and the activations of so few. Nothing if it has not. Draws from
/// torch's default generator: seed it afterwards. Errors: whatever the model and the task throw.
std::optional<plan::ModelFacts> measure_units(const job::TrainConfig& job, const task::Task& task,
                                              const UnitMeasureOptions& options);

/// Of `job`'s optimizer for each parameter of type `dtype`.
double optimizer_state_bytes(const job::TrainConfig& job, torch::Dtype dtype);

}  // namespace bimetal::train

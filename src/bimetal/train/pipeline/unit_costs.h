#pragma once
// What each unit of a model costs on this device, and where that says to cut it.

#include <torch/csrc/api/include/torch/types.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "bimetal/job/job_config.h"
#include "bimetal/parallel/mesh/mesh.h"
#include "bimetal/precision/precision.h"
#include "bimetal/progress/observer.h"
#include "bimetal/task/task.h"
#include "bimetal/train/pipeline/stage_needs.h"

namespace bimetal::train {

struct UnitProbe {
  torch::Device device{torch::kCPU};
  torch::Dtype dtype = torch::kFloat32;
  precision::Precision precision = precision::Precision::float32;
  double speed = 1.0;  ///< emulated: see device::pause_for_speed
  std::chrono::milliseconds budget{800};
  std::int64_t samples = 4;  ///< of the training data, from the first on
  /// One unit's parameters are in memory at a time, where the task makes models by units, for large
  /// models: all are zeros.
  bool by_units = false;
};

/// Seconds of forward and backward of each unit, the loss with the last one: means over a time in
/// which a device that is granted a part of a processor has used that up. Of a model of its own,
/// thrown away afterwards; of activations and gradients there is never more than a unit's. Draws
/// from torch's default generator: seed it afterwards. Empty where that does not fit into memory.
std::vector<double> unit_seconds(const task::Task& task, const UnitProbe& probe);

/// How a model is cut.
struct ChosenCuts {
  std::vector<std::size_t> begins;  ///< unit that each piece begins with
  std::vector<double> parts = {};   ///< weights of the ranks that have its tensors in parts
  /// Of each rank, samples a second that it does of its stage; empty where that was not measured.
  std::vector<double> speeds = {};
};

/// Of the model that `job` cuts into stages: as mesh.cuts has it, or so that the pipeline's step is
/// shortest by what units have been measured to take on the devices of each stage, all ranks at the
/// same time, and by `needs`, if there are any and it can be, each stage fits; where not all could
/// measure, elements of parameters stand for time. The parts of tensors are as part_weights() has
/// them. The same on every rank; collective. Errors: begins_of()'s and part_weights()'.
ChosenCuts choose_cuts(const job::JobConfig& job, comm::Group group,
                       const parallel::MeshShape& shape, const task::Task& task,
                       const UnitProbe& probe, const StageNeeds* needs,
                       progress::Observer& observer);

/// Pieces of the model per stage.
int chunks_of(const job::MeshConfig& mesh);

}  // namespace bimetal::train

#pragma once
// What each unit of a model costs on this device: time, and bytes if the model is cut behind it.

#include <torch/csrc/api/include/torch/types.h>

#include <chrono>
#include <cstdint>
#include <vector>

#include "bimetal/precision/precision.h"
#include "bimetal/task/task.h"

namespace bimetal::train {

struct UnitProbe {
  torch::Device device{torch::kCPU};
  torch::Dtype dtype = torch::kFloat32;
  precision::Precision precision = precision::Precision::float32;
  double speed = 1.0;  ///< emulated: see device::pause_for_speed
  std::chrono::milliseconds budget{800};
  std::int64_t samples = 4;  ///< of a micro-batch: figures are of so many
  /// One unit's parameters are in memory at a time, where the task makes models by units, for large
  /// models: all are zeros.
  bool by_units = false;
};

/// Bytes of a micro-batch that cross the cut behind each unit.
struct CutBytes {
  std::vector<double> forward;   ///< what the unit gives
  std::vector<double> backward;  ///< its gradient
};

struct UnitCosts {
  std::vector<double> seconds;  ///< of each unit: forward and backward, the loss with the last one
  CutBytes sent;
};

/// Means over a time in which a device that is granted a part of a processor has used that up, with
/// the first training samples: as many as a micro-batch has, or, where there are not so many, or
/// neither time nor memory for them, fewer, of which more are taken to cost in proportion. Of a
/// model of its own, thrown away afterwards; of activations and gradients there is never more than
/// a unit's. Draws from torch's default generator: seed it afterwards. Empty where not even few
/// samples fit into memory.
UnitCosts unit_costs(const task::Task& task, const UnitProbe& probe);

}  // namespace bimetal::train

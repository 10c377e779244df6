#pragma once
// Measures, before the first step, how long this job's steps take on each device, so that already
// the first shares fit.

#include <torch/csrc/api/include/torch/types.h>

#include <chrono>
#include <cstdint>
#include <vector>

#include "bimetal/balance/shares.h"
#include "bimetal/comm/group.h"
#include "bimetal/job/job_config.h"
#include "bimetal/precision/precision.h"
#include "bimetal/task/task.h"

namespace bimetal::train {

struct ProbeOptions {
  torch::Device device{torch::kCPU};
  torch::Dtype dtype = torch::kFloat32;
  precision::Precision precision = precision::Precision::float32;
  double speed = 1.0;  ///< emulated: see device::pause_for_speed
  std::chrono::milliseconds budget{800};
  bool update = true;             ///< steps end with the optimizer's
  bool skip = false;              ///< the model is known not to fit: its cost stays unknown
  balance::CostModel known = {};  ///< from before: nothing is measured
};

/// t(b) = α + β·b of one step (forward, backward, update) of `task` on this device, b being the
/// weight of its samples, from steps of two sizes on the first samples of the training data. It
/// trains a model of its own, thrown away afterwards. Draws from torch's default generator: seed it
/// afterwards. Unknown (CostModel::known()) if not even the smallest batch fits into memory.
balance::CostModel probe_step(const job::TrainConfig& job, const task::Task& task,
                              const ProbeOptions& options);

/// Every rank probes at the same time, since they will compute at the same time, and learns every
/// rank's result. Collective.
std::vector<balance::Device> probe_devices(comm::Group group, const job::TrainConfig& job,
                                           const task::Task& task, const ProbeOptions& options);

/// Where no steps are measured: what each rank's device does of float32 products, times the
/// `speed` that is emulated here; in any unit. Ones where somebody cannot tell. Collective.
std::vector<double> probe_products(comm::Group group, const torch::Device& device, double speed);

}  // namespace bimetal::train

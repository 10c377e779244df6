#pragma once
// Steps of a job that train nothing: for measuring how long they take.

#include <torch/csrc/api/include/torch/optim/optimizer.h>

#include <cstdint>
#include <memory>

#include "bimetal/job/job_config.h"
#include "bimetal/task/task.h"
#include "bimetal/train/compute.h"

namespace bimetal::train {

/// A task's model and a job's optimizer, which moves nothing. Use from one thread at a time.
class Rehearsal {
 public:
  /// Draws from torch's default generator. `task` must outlive it. `update`: steps end with the
  /// optimizer's, whose state is what needs most memory.
  Rehearsal(const job::TrainConfig& job, const task::Task& task, const torch::Device& device,
            torch::Dtype dtype, precision::Precision precision, bool update = true);

  /// Seconds of one step (forward, backward and, if asked for, update) on the first `samples`
  /// samples of the training data; emulated slowness is not in them.
  double step(std::int64_t samples);

  /// Of these samples.
  std::int64_t weight(std::int64_t samples) const { return task::weight_of(*data_, 0, samples); }

 private:
  std::shared_ptr<const task::Dataset> data_;
  torch::Device device_;
  task::Model model_;
  Compute compute_;
  bool update_;
  std::unique_ptr<torch::optim::Optimizer> optimizer_;
};

}  // namespace bimetal::train

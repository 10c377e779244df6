#pragma once
// The optimizer that a job file asks for.

#include <torch/csrc/api/include/torch/optim/optimizer.h>

#include <memory>
#include <vector>

#include "bimetal/train/job.h"

namespace bimetal::train {

/// train.optimizer: "sgd" (with momentum), "adam", "adamw". Error(InvalidArgument) otherwise.
std::unique_ptr<torch::optim::Optimizer> make_optimizer(const TrainConfig& config,
                                                        std::vector<torch::Tensor> parameters);

}  // namespace bimetal::train

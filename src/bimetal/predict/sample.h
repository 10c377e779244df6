#pragma once
// What a model that is being trained makes of one sample, for people to look at.

#include <torch/csrc/api/include/torch/types.h>

#include <cstdint>

#include "bimetal/checkpoint/model_file.h"
#include "bimetal/progress/metrics.h"
#include "bimetal/task/task.h"
#include "bimetal/task/unit.h"

namespace bimetal::predict {

/// A sample of `data`, which `draw` chooses. A language model goes on with its begin. `model` is
/// whole, on `device`, and as `description` says; it is in training mode afterwards, and no random
/// numbers are drawn that training draws.
progress::Sample look_at_sample(const task::Task& task,
                                const checkpoint::ModelDescription& description,
                                const task::Dataset& data, const task::Model& model,
                                const torch::Device& device, std::uint64_t draw);

}  // namespace bimetal::predict

#pragma once
// What a model that is being trained makes of one sample, for people to look at.

#include <torch/csrc/api/include/torch/types.h>

#include <cstdint>

#include "bimetal/progress/sample.h"
#include "bimetal/task/catalog/job_task.h"
#include "bimetal/task/unit.h"

namespace bimetal::train {

/// Of the data that the task judges its model by, else of what it learns from; `draw` chooses one.
/// A language model goes on with the sample's begin. `model` is whole, on `device`; it is in
/// training mode afterwards, and no random numbers are drawn that training draws.
progress::Sample look_at_sample(const task::JobTask& task, const task::Model& model,
                                const torch::Device& device, std::uint64_t draw);

}  // namespace bimetal::train

#pragma once
// What a run has learnt, from memory to memory: for ranks that come later, or have missed a step.

#include <torch/csrc/api/include/torch/optim/optimizer.h>

#include <chrono>
#include <vector>

#include "bimetal/checkpoint/checkpoint.h"
#include "bimetal/comm/group.h"
#include "bimetal/task/task.h"

namespace bimetal::checkpoint {

/// Gives the ranks that are `behind` what the others have: those send parameters and the
/// optimizer's tensors in slices, each of them its part, and the first of them the buffers and the
/// state that is returned; `own` and what the optimizer has learnt are ignored on ranks that are
/// behind. Tensors of the CPU are received where they lie. Ranks that are not behind must have made
/// the same steps, and at least one rank must be none of those. Collective; all return once the
/// last has everything. `timeout`: for each slice. Error(CorruptData) on a rank that is sent what
/// makes no sense; then, and after a loss, the values of those behind are undefined.
TrainingState catch_up(comm::Group group, const std::vector<bool>& behind, const TrainingState& own,
                       const task::ModelState& model, torch::optim::Optimizer& optimizer,
                       std::chrono::milliseconds timeout);

}  // namespace bimetal::checkpoint

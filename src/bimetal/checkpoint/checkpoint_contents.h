#pragma once
// What a checkpoint of a whole model is to hold, so that it can be written beside the training: of
// copies.

#include <cstdint>
#include <filesystem>

#include "bimetal/checkpoint/checkpoint.h"
#include "bimetal/checkpoint/optimizer_state.h"
#include "bimetal/checkpoint/safetensors.h"
#include "bimetal/task/model_state.h"

namespace bimetal::checkpoint {

struct CheckpointContents {
  TensorMap model = {}, optimizer = {};
  OptimizerFacts optimizer_facts = {};
  TrainingState state = {};
};

/// The tensors themselves, not copies. Error(Unsupported) as save_checkpoint().
CheckpointContents contents_of(const task::ModelState& model,
                               const torch::optim::Optimizer& optimizer,
                               const TrainingState& state);

/// As save_checkpoint().
std::filesystem::path save_contents(const std::filesystem::path& dir,
                                    const CheckpointContents& contents, std::int64_t keep);

}  // namespace bimetal::checkpoint

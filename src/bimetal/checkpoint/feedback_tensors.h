#pragma once
// What compressed gradients still owe, as named tensors, for files and for other ranks.

#include "bimetal/checkpoint/checkpoint.h"
#include "bimetal/checkpoint/safetensors.h"

namespace bimetal::checkpoint {

/// TrainingState::error_feedback by name, float32.
TensorMap feedback_tensors(const TrainingState& state);

/// The way back.
std::vector<comm::NamedValues> feedback_values(const TensorMap& tensors);

}  // namespace bimetal::checkpoint

#pragma once
// An optimizer's state as named tensors: "<parameter>.momentum_buffer" and the like. Private to the
// code that saves and hands on a training's state.

#include <torch/csrc/api/include/torch/optim/optimizer.h>

#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <type_traits>

#include "bimetal/checkpoint/checkpoint.h"
#include "bimetal/checkpoint/safetensors.h"
#include "bimetal/task/task.h"

namespace bimetal::checkpoint {

/// libtorch's own container: parameter → state.
using OptimizerStates =
    std::remove_reference_t<decltype(std::declval<torch::optim::Optimizer&>().state())>;

/// "sgd", "adam", "adamw", "lars" or "lamb", or a foreign one's own word. Error(Unsupported) for
/// others.
std::string optimizer_kind(const torch::optim::Optimizer& optimizer);

/// The hyper-parameters of each parameter group, for people and for comparison.
nlohmann::ordered_json optimizer_settings(const torch::optim::Optimizer& optimizer);

/// Both: a checkpoint's facts on an optimizer, beside its state.
struct OptimizerFacts {
  std::string kind;
  nlohmann::ordered_json groups;
};
OptimizerFacts optimizer_facts(const torch::optim::Optimizer& optimizer);

/// The states that exist, keyed by the model's names of the parameters. Step counts are int64
/// scalars. Error(InvalidArgument) if the optimizer has a parameter that the model has not.
TensorMap optimizer_tensors(const torch::optim::Optimizer& optimizer,
                            const task::ModelState& model);

/// The way back, on each parameter's device; for optimizer.state(). Nothing is changed.
/// Error(InvalidArgument), beginning with `origin`, if they don't fit.
OptimizerStates optimizer_states(const TensorMap& tensors, const torch::optim::Optimizer& optimizer,
                                 const task::ModelState& model, const std::string& origin);

/// Elements [offset, offset + count) of one parameter's state in `tensors`. Its fields have their
/// own names and one dimension each. Fields that are one number for the whole parameter are copied.
TensorMap part_of_state(const TensorMap& tensors, const std::string& parameter, std::int64_t offset,
                        std::int64_t count);

// The error feedback of compressed gradients as named tensors, for files and for other ranks.

/// TrainingState::error_feedback by name, float32.
TensorMap feedback_tensors(const TrainingState& state);

/// The way back.
std::vector<comm::NamedValues> feedback_values(const TensorMap& tensors);

}  // namespace bimetal::checkpoint

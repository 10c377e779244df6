#pragma once
// What an optimizer has learnt, as named tensors: "<parameter>.momentum_buffer" and the like.
// Private to checkpoint.cpp.

#include <torch/csrc/api/include/torch/nn/module.h>
#include <torch/csrc/api/include/torch/optim/optimizer.h>

#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <type_traits>

#include "bimetal/train/safetensors.h"

namespace bimetal::train {

/// libtorch's own container: parameter → state.
using OptimizerStates =
    std::remove_reference_t<decltype(std::declval<torch::optim::Optimizer&>().state())>;

/// "sgd", "adam", "adamw", "lars" or "lamb". Error(Unsupported) for others.
std::string optimizer_kind(const torch::optim::Optimizer& optimizer);

/// The hyper-parameters of each parameter group, for people and for comparison.
nlohmann::ordered_json optimizer_settings(const torch::optim::Optimizer& optimizer);

/// The states that exist, keyed by the module's names of the parameters. Step counts are int64
/// scalars. Error(InvalidArgument) if the optimizer has a parameter that the module has not.
TensorMap optimizer_tensors(const torch::optim::Optimizer& optimizer,
                            const torch::nn::Module& module);

/// The way back, on each parameter's device; for optimizer.state(). Nothing is changed.
/// Error(InvalidArgument), beginning with `origin`, if they don't fit.
OptimizerStates optimizer_states(const TensorMap& tensors, const torch::optim::Optimizer& optimizer,
                                 const torch::nn::Module& module, const std::string& origin);

}  // namespace bimetal::train

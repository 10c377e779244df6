#pragma once
// The tensors of a model by name: all that checkpoints, optimizers' states and exchanges need of
// it.

#include <torch/csrc/api/include/torch/nn/module.h>

#include <concepts>
#include <memory>
#include <string>
#include <vector>

#include "bimetal/task/unit.h"

namespace bimetal::task {

/// A cheap handle on the tensors themselves. Each is listed once, under its first name, so that it
/// is sent, saved and counted once; undefined ones are left out. What is made of a Model or a
/// module stands for it wherever a ModelState is asked for.
struct ModelState {
  ModelState() = default;
  /// Of all its units.
  ModelState(const Model& model);  // NOLINT(google-explicit-constructor)
  /// Of the module and its own.
  ModelState(const torch::nn::Module& module);  // NOLINT(google-explicit-constructor)
  /// The same.
  template <std::derived_from<torch::nn::Module> M>
  ModelState(const std::shared_ptr<M>& module)  // NOLINT(google-explicit-constructor)
      : ModelState(*module) {}

  std::vector<NamedTensor> parameters;  ///< in the order of units, or of registration
  std::vector<NamedTensor> buffers;     ///< running means and the like
  /// Further names of tensors that are listed under another.
  std::vector<std::string> other_names;
};

/// Error(InvalidArgument) names the name that two tensors have: a file would keep one of them.
void require_distinct_names(const ModelState& model);

/// Without their names.
std::vector<torch::Tensor> tensors_of(const std::vector<NamedTensor>& named);

}  // namespace bimetal::task

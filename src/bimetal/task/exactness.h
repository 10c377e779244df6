#pragma once
// Layers whose result depends on which samples are computed together, or by whom: with these a step
// of several ranks is not the step of one.

#include <torch/csrc/api/include/torch/nn/module.h>

#include <memory>

#include "bimetal/task/unit.h"

namespace bimetal::task {

/// What make_unit has for Unit::set_training, so that a unit's module can be found in it.
struct ModuleTraining {
  std::shared_ptr<torch::nn::Module> module;
  void operator()(bool training) const { module->train(training); }
};

/// Error(InvalidArgument) names torch's batch normalisations and dropouts that are in training
/// mode, and what to take instead. What a forward does by itself, without a layer, it cannot see.
void require_exact(const torch::nn::Module& module);
/// The same of the modules that make_unit was given.
void require_exact(const Model& model);

}  // namespace bimetal::task

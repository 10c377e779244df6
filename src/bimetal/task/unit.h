#pragma once
// A model as an ordered list of units. Parameters are waited for, gathered and recomputed by units,
// and a model may be cut between them. All work between the parts of a model is tied to the
// boundaries of its units, since libtorch has no hooks on modules.
//
// Layers whose result depends on which samples are computed together, or by whom: with these a step
// of several ranks is not the step of one.

#include <torch/csrc/api/include/torch/nn/module.h>
#include <torch/csrc/api/include/torch/types.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "bimetal/task/batch_norm.h"

namespace bimetal::task {

// The values that flow through a model and out of a data set: tensors in an order that both sides
// know.

/// A batch, a unit's inputs, or its outputs. The first dimension of each tensor of a batch is the
/// samples.
using Values = std::vector<torch::Tensor>;

/// How many samples a batch holds: the first dimension of its first tensor; 0 of no tensors.
std::int64_t samples_of(const Values& batch);

/// Samples `begin` … `end - 1`; shares their memory.
Values slice(const Values& batch, std::int64_t begin, std::int64_t end);

/// The same values on `device`; `non_blocking`: as torch::Tensor::to has it.
Values to_device(const Values& values, const torch::Device& device, bool non_blocking = false);

/// Puts the channels of each pixel side by side in memory (torch.channels_last) for images: tensors
/// of four dimensions and floating point. Convolutions hand this layout on. The numbers stay the
/// same, and parameters need not have this layout.
Values in_channels_last(Values values);

/// A tensor of a model.
struct NamedTensor {
  std::string name;      ///< in the whole model, as checkpoints have it: "conv1.weight"
  torch::Tensor tensor;  ///< the tensor itself, not a copy
};

/// How a parameter may be cut into the parts of ranks that compute a unit together
/// (tensor_ranks.h). If a unit declares such splits, its forward takes sizes from the parameters,
/// and works with parts of them.
struct TensorSplit {
  std::string parameter;      ///< its name in the unit
  std::int64_t dim = 0;       ///< along which it is cut
  std::int64_t grain = 1;     ///< so much of the dimension stays together: a head's numbers
  std::int64_t segments = 1;  ///< the dimension is that many in a row, each cut alike: 3 of q, k, v
};

/// A part of a model. A cheap handle: copies share the tensors. Use from one thread.
struct Unit {
  std::string name;  ///< "conv1"; for messages
  /// Leaves. One that another unit has, too (GPT-2's embedding and head), is the same tensor there.
  std::vector<NamedTensor> parameters;
  std::vector<NamedTensor> buffers = {};  ///< running means and the like
  /// From the outputs of the unit before, or the model's inputs. A function of these, the
  /// parameters and the buffers: it may be called again for the same inputs.
  std::function<Values(const Values& inputs)> forward;
  std::function<void(bool training)> set_training = {};  ///< empty: it makes no difference
  std::vector<BatchStatistics> statistics = {};          ///< of its batch normalisations
  std::vector<TensorSplit> splits = {};  ///< parameters that are not named stay whole
  /// Names of parameters that nothing but matrix products and convolutions use: autocast computes
  /// these from copies of half the size, so that the parameters may come in it.
  std::vector<std::string> products = {};
};

/// One that nobody has cut is one unit. A cheap handle, as its units are. Use from one thread.
struct Model {
  std::vector<Unit> units;  ///< in the order of the forward pass

  /// Each tensor once, under its first name, in the order of the units.
  std::vector<NamedTensor> named_parameters() const;
  std::vector<NamedTensor> named_buffers() const;  ///< likewise
  /// For an optimizer; in the order of named_parameters().
  std::vector<torch::Tensor> parameters() const;
  /// Names of one tensor each: its first, and others under which it comes again. Tensors with one
  /// name are left out.
  std::vector<std::vector<std::string>> tied() const;

  /// The statistics of all units.
  std::vector<BatchStatistics> statistics() const;
  /// Samples that belong together, since they are normalised with each other; 1: none do.
  std::int64_t sample_group() const;

  void train(bool on = true) const;    ///< sets all units to training or evaluation mode
  void eval() const { train(false); }  ///< evaluation mode
  /// Floating-point parameters and buffers become `dtype`; all move to `device`. Handles stay
  /// valid, tied tensors stay tied.
  void to(const torch::Device& device, torch::Dtype dtype) const;
  void to(const torch::Device& device) const;  ///< the same without another type
};

/// A module as a unit. Its tensors are called "<name>.<their name in it>", or without a name as in
/// it; those of linear and convolutional layers are taken for products, which others must not use
/// by themselves then. It is kept alive.
Unit make_unit(std::string name, std::shared_ptr<torch::nn::Module> module,
               std::function<Values(const Values& inputs)> forward);

/// The same for one tensor in, one tensor out.
Unit make_unit(std::string name, std::shared_ptr<torch::nn::Module> module,
               std::function<torch::Tensor(torch::Tensor input)> forward);

/// Told of each unit of a model that is being made, once its tensors have their values and before
/// the next unit is made. It may take the values and free their memory, as long as the tensors
/// stay.
using UnitMade = std::function<void(const Unit& unit)>;

/// Told before each use of a unit's parameters (the unit's place in the model), also where backward
/// computes the unit again: returns when they are there.
using BeforeUse = std::function<void(std::size_t unit)>;

/// The name of the unit that threw the exception which is being handled, out of run_units() on this
/// thread; empty where it came from elsewhere.
std::string failed_unit();

/// The forward pass: the units in their order. The one place that walks them. Errors: whatever a
/// unit or `before_use` throws.
Values run_units(const Model& model, Values inputs, const BeforeUse& before_use = {});
/// The same of a part of a model, whose first unit has the place `first` in it.
Values run_units(std::span<const Unit> units, Values inputs, const BeforeUse& before_use,
                 std::size_t first);

/// The value that make_unit passes as Unit::set_training, so that a unit's module can be found in
/// it.
struct ModuleTraining {
  std::shared_ptr<torch::nn::Module> module;  ///< the unit's
  /// Sets the module to training or evaluation mode.
  void operator()(bool training) const { module->train(training); }
};

/// Error(InvalidArgument) names torch's batch normalisations and dropouts that are in training
/// mode, and their replacements. It cannot see what a forward does without a layer.
void require_exact(const torch::nn::Module& module);
/// The same of the modules that make_unit was given.
void require_exact(const Model& model);

}  // namespace bimetal::task

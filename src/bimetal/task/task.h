#pragma once
// A learning task: a model, the data that it learns from and is judged by, and the loss. Nothing in
// it is distributed.
//
// The tensors of a model by name: all that checkpoints, optimizers' states and exchanges need of
// it.

#include <torch/csrc/api/include/torch/nn/module.h>

#include <concepts>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "bimetal/task/unit.h"

namespace bimetal::task {

// The data to learn from: images, tokens, the user's own.

/// Samples 0 … size() - 1. Immutable while it is used, and the same on every rank. batch() is
/// called by several threads at once: the next batch is built beside the computation.
class Dataset {
 public:
  virtual ~Dataset() = default;

  /// At least 1.
  virtual std::int64_t size() const = 0;

  /// A sample's weight in the mean that is minimised, which is also about its cost to compute: 1,
  /// or its number of tokens with a target. At least 1. Every rank knows every sample's, so that
  /// the weight of a whole step is known without a message.
  virtual std::int64_t weight(std::int64_t /*sample*/) const { return 1; }

  /// The samples in that order, on the CPU: each tensor's first dimension is theirs (there may be
  /// none of them). Sequences are padded to one length; padding must not count in the loss. Built
  /// for training, it is so in a DrawScope (dropout.h), from which a data set that changes its
  /// samples at random draws; outside of one it gives them as they are.
  virtual Values batch(std::span<const std::int64_t> samples) const = 0;
};

/// Each sample's weight; empty where all weigh 1.
std::vector<std::int64_t> weights_of(const Dataset& dataset);

/// The weight of samples `begin` … `end - 1`.
std::int64_t weight_of(const Dataset& dataset, std::int64_t begin, std::int64_t end);

/// About the weight of a sample, by the first of them. At least 1.
std::int64_t typical_weight(const Dataset& dataset);

/// Samples `begin` … `end - 1` in a batch.
Values batch_of(const Dataset& dataset, std::int64_t begin, std::int64_t end);

/// A figure by which people judge a model beside its loss.
struct Metric {
  std::string name;  ///< lower case with underscores, as in reports: "accuracy", "perplexity"
  /// Summed over a batch, one number: the metric is the mean over all samples' weight. Empty: the
  /// loss itself.
  std::function<torch::Tensor(const Values& outputs, const Values& batch)> sum = {};
  /// Turns that mean into the metric. Empty: the mean is the metric.
  std::function<double(double mean)> of_mean = {};
};

/// Called by several threads at once: a rank may measure itself beside its own work.
class Task {
 public:
  virtual ~Task() = default;

  /// A new model on the CPU in float32. Its random numbers come from torch's default generator. The
  /// caller has seeded it, so that all ranks draw the same.
  virtual Model make_model() const = 0;

  /// The same model, made so that there is never more than a unit in memory, if `made` sees to it.
  /// Nothing: this task makes its models whole.
  virtual std::optional<Model> make_model_by_units(const UnitMade& /*made*/) const {
    return std::nullopt;
  }

  /// The data to learn from; the same object each time.
  virtual std::shared_ptr<const Dataset> training() const = 0;
  /// The data for evaluation; nullptr: there is none.
  virtual std::shared_ptr<const Dataset> evaluation() const { return nullptr; }

  /// Training data that is held out: the model is judged by it while it trains, so that
  /// evaluation() can judge it at the end. nullptr: nothing is held out, and evaluation() does
  /// both.
  virtual std::shared_ptr<const Dataset> validation() const { return nullptr; }

  /// Which tensors of a batch the model takes: all but the last, the targets.
  virtual Values inputs(const Values& batch) const;

  /// The sum over the batch's targets, one number, whose gradient is backward's start. Outputs and
  /// batch are on the computing device. Not a mean: the step divides by the weight of all samples
  /// of the global batch, so that any split of it gives the same gradient.
  virtual torch::Tensor loss_sum(const Values& outputs, const Values& batch) const = 0;

  /// The same list on every call and every rank.
  virtual std::vector<Metric> metrics() const { return {}; }

  /// Facts, beside the model, that must be the same on all ranks of a job: one in each line, for
  /// people to read, such as digests of the data.
  virtual std::vector<std::string> facts() const { return {}; }
};

/// A cheap handle on the tensors themselves. Each is listed once, under its first name, so that it
/// is sent, saved and counted once; undefined ones are left out. A Model or a module converts to
/// one wherever a ModelState is asked for.
struct ModelState {
  ModelState() = default;
  /// The tensors of all its units.
  ModelState(const Model& model);  // NOLINT(google-explicit-constructor)
  /// The tensors of the module and its submodules.
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

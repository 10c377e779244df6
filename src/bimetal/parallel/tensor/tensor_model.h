#pragma once
// A model of which each tensor rank has its part. Its units compute together with those of the
// other ranks (task/tensor_ranks.h). To users they are units with smaller parameters.
// docs/tensor.md.
//
// Which part of each of a model's tensors a tensor rank has, according to the splits of its units.
// Cuts tensors into these parts.
//
// The sums that a step needs for parameters in parts on several tensor ranks, beside those of each
// part's replicas.

#include <torch/csrc/api/include/torch/types.h>

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "bimetal/parallel/sync.h"
#include "bimetal/parallel/tensor/group_ranks.h"
#include "bimetal/task/task.h"
#include "bimetal/task/tensor_ranks.h"
#include "bimetal/task/unit.h"

namespace bimetal::parallel::tensor {

/// A part's place in its whole: these ranges of dimension `dim`, one behind the other, and all of
/// the other dimensions.
struct PartPlaces {
  std::int64_t dim = 0;
  std::vector<task::Part> places;  ///< one of each segment
};

/// A pure function of names, shapes, splits and weights. Immutable.
class Cuts {
 public:
  /// The cuts of a whole model. Errors: InvalidArgument for a parameter with fewer pieces that stay
  /// whole than ranks, saying how many ranks it could do with; for splits that do not fit their
  /// parameter, or differ for one that two units have; Unsupported for a model without splits.
  Cuts(const task::Model& whole, std::vector<double> weights);

  /// Whether the parameter of that name (its first one) is cut; else every rank has all of it.
  bool has(const std::string& parameter) const { return cuts_.contains(parameter); }

  /// Rank `rank`'s part of `whole`, which has the parameter's shape: a copy, or `whole` itself
  /// where the parameter stays whole.
  torch::Tensor part(const std::string& parameter, const torch::Tensor& whole, int rank) const;

  /// The opposite, for a parameter that is cut: writes rank `rank`'s `part` to its places in
  /// `whole`.
  void put(const std::string& parameter, const torch::Tensor& part, int rank,
           const torch::Tensor& whole) const;

  /// For a parameter that is cut: the place of rank `rank`'s part in it, the whole's sizes, and the
  /// part's.
  PartPlaces places(const std::string& parameter, int rank) const;
  const std::vector<std::int64_t>& sizes(const std::string& parameter) const;
  std::vector<std::int64_t> part_sizes(const std::string& parameter, int rank) const;

  /// One for each tensor rank.
  const std::vector<double>& weights() const noexcept { return weights_; }
  int ranks() const noexcept { return static_cast<int>(weights_.size()); }

 private:
  struct Cut {
    task::TensorSplit split;
    std::vector<std::int64_t> sizes;   ///< of the whole
    std::vector<std::int64_t> counts;  ///< of a segment by rank, along the split's dimension
  };
  void add(const task::NamedTensor& parameter, const std::string& unit,
           const task::TensorSplit& split);

  std::vector<double> weights_;
  std::map<std::string, Cut> cuts_;
};

/// The values between units: whole on every rank, or each rank's part of every sequence
/// (SequenceRanks).
enum class Between { whole, parts };

/// Use from one thread.
class TensorModel {
 public:
  /// The origin of the parts' values. `later`: `whole` is hollow (shard/flat_parameters.h), and
  /// parts get memory with undefined values. Tensors that are not cut stay as they are.
  enum class Values { of_rank_0, later };

  /// Verifies that the ranks hold the same model, takes rank 0's values everywhere and leaves each
  /// rank its part of them, in the very tensors of `whole`: hooks and optimizers come afterwards.
  /// `cuts`: those of that model, or of the one that it is a stage of, where its tensors have the
  /// same names. Collective. Errors: CallMismatch as check_same_on_all_ranks() has it. With
  /// Between::parts the sequences of units are in the second dimension, and outputs have one tensor
  /// more, behind the others (with_length()).
  TensorModel(const task::Model& whole, std::shared_ptr<const GroupRanks> ranks, Cuts cuts,
              Between between = Between::whole, Values values = Values::of_rank_0);

  /// The model to compute with, on all tensor ranks for the same samples.
  const task::Model& model() const noexcept { return model_; }
  const Cuts& cuts() const noexcept { return cuts_; }
  const std::shared_ptr<const GroupRanks>& ranks() const noexcept { return ranks_; }

  /// Parameters that every rank has whole, each once. Their gradients are the same on all of them,
  /// or where sequences are in parts, each rank's those of its positions.
  const std::vector<torch::Tensor>& kept_whole() const noexcept { return kept_whole_; }
  Between between() const noexcept { return between_; }

 private:
  void take_values_of_rank_0(const task::Model& whole) const;
  torch::Tensor part_of(const task::NamedTensor& parameter, Values values) const;

  std::shared_ptr<const GroupRanks> ranks_;
  Cuts cuts_;
  task::Model model_;
  std::vector<torch::Tensor> kept_whole_;
  Between between_;
};

// A task as one of several tensor ranks computes it.

/// The task itself, except that each rank may have its part of the outputs that losses and metrics
/// take (task::cross_entropy_sum). The code that makes its models cuts them.
class TensorTask final : public task::Task {
 public:
  /// `task` must outlive it.
  TensorTask(const task::Task& task, std::shared_ptr<const task::TensorRanks> ranks);

  task::Model make_model() const override { return task_.make_model(); }
  std::shared_ptr<const task::Dataset> training() const override { return task_.training(); }
  std::shared_ptr<const task::Dataset> evaluation() const override { return task_.evaluation(); }
  task::Values inputs(const task::Values& batch) const override { return task_.inputs(batch); }
  torch::Tensor loss_sum(const task::Values& outputs, const task::Values& batch) const override;
  std::vector<task::Metric> metrics() const override;
  std::vector<std::string> facts() const override { return task_.facts(); }

 private:
  const task::Task& task_;
  std::shared_ptr<const task::TensorRanks> ranks_;
};

/// Every rank of all replicas makes the same calls.
class TensorSums final : public ExtraSums {
 public:
  /// `replicas`: where model.model() lives; in shards, model.kept_whole() is whole all the time.
  TensorSums(std::shared_ptr<ParameterStore> replicas, std::shared_ptr<const TensorModel> model);

  void begin_step() override;
  /// Sums over the tensor ranks, too, where each has the gradients of whole parameters for its own
  /// positions.
  void after_replicas() override;
  /// Gives all ranks rank 0's values of tensors that are kept whole: devices of different kinds
  /// round differently, and would drift apart.
  void after_update() override;

  /// Rank 0 alone counts tensors that are kept whole.
  bool counts(const torch::Tensor& whole) const override;
  progress::RankFigures as_one(const progress::RankFigures& mine) override;
  /// A rank that stopped in a pass leaves the others waiting for its part.
  bool can_repeat() const noexcept override { return false; }

  /// For sums, and for the others in them.
  double unit_seconds() const noexcept override;
  double communicate_seconds() const noexcept override;

 private:
  void sum_gradients(std::vector<torch::Tensor>& parameters);

  std::shared_ptr<ParameterStore> replicas_;
  std::shared_ptr<const TensorModel> model_;
  comm::Group group_;  ///< of the tensor ranks, beside that of their units' sums
  progress::FigureExchange figures_;
  double seconds_before_ = 0;   ///< of the steps before this one
  double summing_seconds_ = 0;  ///< of this one, outside of units
};

}  // namespace bimetal::parallel::tensor

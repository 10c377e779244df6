#pragma once
// A model of which each tensor rank has its part. Its units compute together with those of the
// other ranks (task/tensor_ranks.h). To users they are units with smaller parameters.
// docs/tensor.md.

#include <torch/csrc/api/include/torch/types.h>

#include <memory>
#include <vector>

#include "bimetal/parallel/tensor/cuts.h"
#include "bimetal/parallel/tensor/group_ranks.h"
#include "bimetal/task/task.h"
#include "bimetal/task/unit.h"

namespace bimetal::parallel::tensor {

/// What flows between units: on every rank whole, or of every sequence its part (SequenceRanks).
enum class Between { whole, parts };

/// Use from one thread.
class TensorModel {
 public:
  /// Where the parts' values are from. `later`: `whole` is hollow (shard/flat_parameters.h), and
  /// parts get memory with anything in it; what is not cut stays as it is.
  enum class Values { of_rank_0, later };

  /// Verifies that the ranks hold the same model, takes rank 0's values everywhere and leaves each
  /// rank its part of them, in the very tensors of `whole`: hooks and optimizers come afterwards.
  /// `cuts`: of that model, or of one of which it is a stage, whose tensors have the names that
  /// they have there. Collective. Errors: CallMismatch as check_same_on_all_ranks() has it. Of
  /// parts units' sequences lie in the second dimension, and outputs have one tensor more than they
  /// had, behind the others (with_length()).
  TensorModel(const task::Model& whole, std::shared_ptr<const GroupRanks> ranks, Cuts cuts,
              Between between = Between::whole, Values values = Values::of_rank_0);

  /// What to compute with, on all tensor ranks for the same samples.
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

/// The task itself, but that losses and metrics are of outputs of which each rank may have its part
/// (task::cross_entropy_sum). Of its models whoever makes them cuts what is to be cut.
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

}  // namespace bimetal::parallel::tensor

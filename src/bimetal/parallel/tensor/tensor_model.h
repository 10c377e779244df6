#pragma once
// A model of which each tensor rank has its part: units that compute together with those of the
// other ranks (task/tensor_ranks.h), and for who sees them nothing but units with smaller
// parameters. docs/tensor.md.

#include <torch/csrc/api/include/torch/types.h>

#include <memory>
#include <vector>

#include "bimetal/parallel/tensor/cuts.h"
#include "bimetal/parallel/tensor/group_ranks.h"
#include "bimetal/task/unit.h"

namespace bimetal::parallel::tensor {

/// Use from one thread.
class TensorModel {
 public:
  /// Where the parts' values are from. `later`: `whole` is hollow (shard/flat_parameters.h), and
  /// parts get memory with anything in it; what is not cut stays as it is.
  enum class Values { of_rank_0, later };

  /// Verifies that the ranks hold the same model, takes rank 0's values everywhere and leaves each
  /// rank its part of them, in the very tensors of `whole`: hooks and optimizers come afterwards.
  /// `cuts`: of that model, or of one of which it is a stage, whose tensors have the names that
  /// they have there. Collective. Errors: CallMismatch as check_same_on_all_ranks() has it.
  TensorModel(const task::Model& whole, std::shared_ptr<const GroupRanks> ranks, Cuts cuts,
              Values values = Values::of_rank_0);

  /// What to compute with, on all tensor ranks for the same samples.
  const task::Model& model() const noexcept { return model_; }
  const Cuts& cuts() const noexcept { return cuts_; }
  const std::shared_ptr<const GroupRanks>& ranks() const noexcept { return ranks_; }

  /// Parameters that every rank has whole, each once: their gradients are the same on all of them.
  const std::vector<torch::Tensor>& kept_whole() const noexcept { return kept_whole_; }

 private:
  void take_values_of_rank_0(const task::Model& whole) const;
  torch::Tensor part_of(const task::NamedTensor& parameter, Values values) const;

  std::shared_ptr<const GroupRanks> ranks_;
  Cuts cuts_;
  task::Model model_;
  std::vector<torch::Tensor> kept_whole_;
};

}  // namespace bimetal::parallel::tensor

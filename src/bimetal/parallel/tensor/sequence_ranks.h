#pragma once
// Tensor ranks that each have some positions of every sequence where tensors are not cut: sequence
// parallelism (Korthikanti et al., "Reducing activation recomputation in large transformer models",
// 2022, section 4.2.2: figures 5 and 6).

#include <torch/csrc/api/include/torch/types.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "bimetal/parallel/tensor/group_ranks.h"
#include "bimetal/task/unit.h"

namespace bimetal::parallel::tensor {

/// How many of a sequence's `length` positions each rank has, in the order of ranks: by their
/// weights, as balance::whole_parts() has it; of a sequence with fewer positions than ranks one for
/// each of the first. Pure. Error(InvalidArgument) for weights that are not positive and finite.
std::vector<std::int64_t> positions_by_rank(std::int64_t length, std::span<const double> weights);

/// For sequences of one length: of one pass through a unit. What sums would be is then a
/// reduce_scatter, and what is shared an all_gather, with the other one as its gradient: together
/// they move what an all_reduce moves.
class SequenceRanks final : public task::TensorRanks,
                            public std::enable_shared_from_this<SequenceRanks> {
 public:
  SequenceRanks(std::shared_ptr<const GroupRanks> ranks, std::int64_t length);

  task::Part part(std::int64_t pieces) const override { return ranks_->part(pieces); }
  std::optional<task::Part> positions() const override;
  torch::Tensor shared(const torch::Tensor& x) const override;
  torch::Tensor sum(const torch::Tensor& x) const override;
  torch::Tensor cross_entropy_sum(const torch::Tensor& logits, const torch::Tensor& targets,
                                  std::int64_t vocabulary, std::int64_t ignored) const override {
    return ranks_->cross_entropy_sum(logits, targets, vocabulary, ignored);
  }

  /// Of `x` [samples, positions here, …] the positions of all ranks. Collective.
  torch::Tensor gathered(const torch::Tensor& x) const;
  /// Of the sum of the ranks' `x` [samples, all positions, …] the positions here. Collective.
  torch::Tensor sum_here(const torch::Tensor& x) const;

 private:
  std::shared_ptr<const GroupRanks> ranks_;
  std::vector<std::int64_t> counts_;  ///< positions by rank
};

/// What flows between units has, behind its tensors, one of no elements that says how long its
/// sequences are: [length, 0]. A part alone does not tell.
task::Values with_length(task::Values values, std::int64_t length);
/// The opposite: takes it off. Of a model's own inputs, which are whole and say nothing, it is the
/// second dimension of the first.
std::int64_t take_length(task::Values& values);

}  // namespace bimetal::parallel::tensor

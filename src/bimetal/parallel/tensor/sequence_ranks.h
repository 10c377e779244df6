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
/// weights, as in balance::whole_parts(). A sequence with fewer positions than ranks gives one to
/// each of the first. Pure. Error(InvalidArgument) for weights that are not positive and finite.
std::vector<std::int64_t> positions_by_rank(std::int64_t length, std::span<const double> weights);

/// For sequences of one length: those of one pass through a unit. A reduce_scatter takes the place
/// of sums, and an all_gather that of shared inputs. Each is the other's gradient: together they
/// move as much as an all_reduce.
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

  /// The positions of all ranks of `x` [samples, positions here, …]. Collective.
  torch::Tensor gathered(const torch::Tensor& x) const;
  /// The positions here of the sum of the ranks' `x` [samples, all positions, …]. Collective.
  torch::Tensor sum_here(const torch::Tensor& x) const;

 private:
  std::shared_ptr<const GroupRanks> ranks_;
  std::vector<std::int64_t> counts_;  ///< positions by rank
};

/// Adds a tensor without elements, of shape [length, 0], behind the values between units. It says
/// how long the sequences are, which a part alone does not tell.
task::Values with_length(task::Values values, std::int64_t length);
/// The opposite: takes it off. A model's own inputs are whole and lack it: there the length is the
/// second dimension of the first.
std::int64_t take_length(task::Values& values);

}  // namespace bimetal::parallel::tensor

#pragma once
// Cross-entropy of logits of which each tensor rank has its part of the vocabulary. No rank ever
// has all of them (Shoeybi et al. 2019, section 3). Two numbers for each target travel, and before
// them the largest logit.

#include <torch/csrc/api/include/torch/types.h>

#include <cstdint>

#include "bimetal/parallel/tensor/group_ranks.h"

namespace bimetal::parallel::tensor {

/// The sum over `targets` [n], but for those that are `ignored`, of -log softmax(logits)[target].
/// `logits` [n, here.count]: of `here`, this rank's part; those of 16 bits are computed with in
/// float32. The same number on all ranks. Collective, in forward alone.
torch::Tensor vocabulary_loss_sum(const torch::Tensor& logits, const torch::Tensor& targets,
                                  task::Part here, std::int64_t ignored, const GroupRanks& ranks);

}  // namespace bimetal::parallel::tensor

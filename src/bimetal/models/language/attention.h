#pragma once
// Causal attention over heads, as GPT-2 and Llama have it in common.

#include <torch/csrc/api/include/torch/types.h>

#include <cstdint>

#include "bimetal/task/dropout.h"

namespace bimetal::models {

/// [b, t, heads × d] as [b, heads, t, d], `width` being d.
torch::Tensor split_heads(const torch::Tensor& x, std::int64_t width);

/// What each position gathers from those up to itself: softmax(q·kᵀ ÷ √d)·v (Vaswani et al. 2017,
/// section 3.2.1), by torch's fused kernels. `q` is [b, heads, t, d], `k` and `v` are
/// [b, kv_heads, t, d], each of them for heads ÷ kv_heads heads of q in a row (Ainslie et al.
/// 2023). In a PastScope (task/past.h) positions before these are gathered from, too. Returns
/// [b, t, heads × d]. With `dropout` > 0 the weights are dropped by task::dropout
/// for `layer`, which the fused kernels cannot do: they are then held, t × t for each head.
/// `heads`: which of the model's q holds.
torch::Tensor causal_attention(const torch::Tensor& q, const torch::Tensor& k,
                               const torch::Tensor& v, double dropout, std::int64_t layer,
                               task::HeadRange heads);

/// Of a model's heads those that are computed here (task/tensor_ranks.h): whole groups that share
/// one head of keys and values.
task::HeadRange heads_here(std::int64_t heads, std::int64_t kv_heads);

}  // namespace bimetal::models

#include "bimetal/models/language/attention.h"

#include <torch/csrc/api/include/torch/types.h>

#include <cmath>
#include <limits>
#include <optional>

#include "bimetal/task/past.h"
#include "bimetal/task/tensor_ranks.h"

namespace bimetal::models {
namespace {

torch::Tensor with_dropped_weights(const torch::Tensor& q, const torch::Tensor& k,
                                   const torch::Tensor& v, double dropout, std::int64_t layer,
                                   task::HeadRange heads) {
  const auto shared_by = q.size(1) / k.size(1), length = q.size(2);
  const auto keys = shared_by > 1 ? k.repeat_interleave(shared_by, 1) : k;
  const auto values = shared_by > 1 ? v.repeat_interleave(shared_by, 1) : v;
  const auto later = torch::ones({length, length}, q.options().dtype(torch::kBool)).triu(1);
  const auto factor = 1 / std::sqrt(static_cast<double>(q.size(3)));
  const auto scores = torch::matmul(q * factor, keys.transpose(2, 3))
                          .masked_fill(later, -std::numeric_limits<double>::infinity());
  return torch::matmul(task::dropout_by_sample(scores.softmax(-1), dropout, layer, heads), values);
}

/// True where a position looks: [t, length], those of the past first.
torch::Tensor looked_at(std::int64_t t, std::int64_t length, const torch::Device& device) {
  return torch::ones({t, length}, torch::dtype(torch::kBool).device(device)).tril(length - t);
}

torch::Tensor with_past(const torch::Tensor& q, const torch::Tensor& k, const torch::Tensor& v,
                        std::int64_t layer) {
  auto& past = *task::current_past();
  const bool begins = past.length() == 0;
  const auto [keys, values] = past.join(layer, k, v);
  std::optional<torch::Tensor> mask;
  if (!begins && q.size(2) > 1) mask = looked_at(q.size(2), keys.size(2), q.device());
  return at::scaled_dot_product_attention(q, keys, values, mask, /*dropout_p=*/0.0,
                                          /*is_causal=*/begins, /*scale=*/{},
                                          /*enable_gqa=*/q.size(1) != k.size(1));
}

torch::Tensor gathered_by(const torch::Tensor& q, const torch::Tensor& k, const torch::Tensor& v,
                          double dropout, std::int64_t layer, task::HeadRange heads) {
  if (dropout > 0) return with_dropped_weights(q, k, v, dropout, layer, heads);
  if (task::current_past()) return with_past(q, k, v, layer);
  return at::scaled_dot_product_attention(q, k, v, /*attn_mask=*/{}, /*dropout_p=*/0.0,
                                          /*is_causal=*/true, /*scale=*/{},
                                          /*enable_gqa=*/q.size(1) != k.size(1));
}

}  // namespace

torch::Tensor split_heads(const torch::Tensor& x, std::int64_t width) {
  return x.view({x.size(0), x.size(1), x.size(2) / width, width}).transpose(1, 2);
}

torch::Tensor causal_attention(const torch::Tensor& q, const torch::Tensor& k,
                               const torch::Tensor& v, double dropout, std::int64_t layer,
                               task::HeadRange heads) {
  return gathered_by(q, k, v, dropout, layer, heads).transpose(1, 2).flatten(2);
}

task::HeadRange heads_here(std::int64_t heads, std::int64_t kv_heads) {
  return {task::part_here(kv_heads).first * (heads / kv_heads), heads};
}

}  // namespace bimetal::models

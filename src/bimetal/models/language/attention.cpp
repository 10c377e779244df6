#include "bimetal/models/language/attention.h"

#include <torch/torch.h>

#include <cmath>
#include <limits>

#include "bimetal/task/dropout.h"

namespace bimetal::models {
namespace {

torch::Tensor with_dropped_weights(const torch::Tensor& q, const torch::Tensor& k,
                                   const torch::Tensor& v, double dropout, std::int64_t layer) {
  const auto shared_by = q.size(1) / k.size(1), length = q.size(2);
  const auto keys = shared_by > 1 ? k.repeat_interleave(shared_by, 1) : k;
  const auto values = shared_by > 1 ? v.repeat_interleave(shared_by, 1) : v;
  const auto later = torch::ones({length, length}, q.options().dtype(torch::kBool)).triu(1);
  const auto factor = 1 / std::sqrt(static_cast<double>(q.size(3)));
  const auto scores = torch::matmul(q * factor, keys.transpose(2, 3))
                          .masked_fill(later, -std::numeric_limits<double>::infinity());
  return torch::matmul(task::dropout_by_sample(scores.softmax(-1), dropout, layer), values);
}

}  // namespace

torch::Tensor split_heads(const torch::Tensor& x, std::int64_t heads) {
  return x.view({x.size(0), x.size(1), heads, x.size(2) / heads}).transpose(1, 2);
}

torch::Tensor causal_attention(const torch::Tensor& q, const torch::Tensor& k,
                               const torch::Tensor& v, double dropout, std::int64_t layer) {
  const auto gathered =
      dropout > 0 ? with_dropped_weights(q, k, v, dropout, layer)
                  : at::scaled_dot_product_attention(q, k, v, /*attn_mask=*/{}, /*dropout_p=*/0.0,
                                                     /*is_causal=*/true, /*scale=*/{},
                                                     /*enable_gqa=*/q.size(1) != k.size(1));
  return gathered.transpose(1, 2).flatten(2);
}

}  // namespace bimetal::models

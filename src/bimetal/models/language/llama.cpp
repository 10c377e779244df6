#include <fmt/format.h>
#include <torch/csrc/api/include/torch/types.h>

#include <utility>

#include "bimetal/models/language/attention.h"
#include "bimetal/models/language/language_model.h"
#include "bimetal/models/language/unit_parts.h"
#include "bimetal/task/past.h"
#include "bimetal/task/tensor_ranks.h"

namespace bimetal::models {
namespace {

struct RmsNormalisation {
  torch::Tensor weight;
  double epsilon;

  RmsNormalisation(UnitParts& parts, const std::string& name, const LanguageModelConfig& config)
      : weight(parts.ones(name + ".weight", config.width)), epsilon(config.epsilon) {}
  torch::Tensor operator()(const torch::Tensor& x) const {
    return torch::rms_norm(x, weight.sizes(), weight, epsilon);
  }
};

struct Matrix {
  torch::Tensor weight;

  /// May be cut along `dim`: 0, by what comes out of it, or 1, by what goes in.
  Matrix(UnitParts& parts, const std::string& name, std::int64_t in, std::int64_t out,
         std::int64_t dim, std::int64_t grain = 1)
      : weight(parts.drawn(name + ".weight", {out, in})) {
    parts.may_be_cut(dim, grain);
    parts.only_multiplied();
  }
  torch::Tensor operator()(const torch::Tensor& x) const { return torch::linear(x, weight); }
};

/// By how much each position from `first` on turns: cosines and sines, [t, d/2]. In float32 at
/// least: the angles grow with the position, and bfloat16 has no digits for them.
struct Rotation {
  torch::Tensor cosine, sine;

  Rotation(const torch::Tensor& like, std::int64_t first, std::int64_t length, std::int64_t width,
           double theta) {
    const auto wide = like.scalar_type() == torch::kFloat64 ? torch::kFloat64 : torch::kFloat32;
    const auto options = like.options().dtype(wide).requires_grad(false);
    const auto exponents = torch::arange(0, width, 2, options) / static_cast<double>(width);
    const auto frequencies = torch::pow(theta, exponents).reciprocal();
    const auto angles = torch::outer(torch::arange(first, first + length, options), frequencies);
    cosine = angles.cos().to(like.scalar_type());
    sine = angles.sin().to(like.scalar_type());
  }
  /// [b, heads, t, d]
  torch::Tensor operator()(const torch::Tensor& x) const {
    const auto halves = x.chunk(2, 3);
    return torch::cat(
        {halves[0] * cosine - halves[1] * sine, halves[1] * cosine + halves[0] * sine}, 3);
  }
};

task::Unit llama_embedding(const LanguageModelConfig& config) {
  UnitParts parts("embedding", "model.", config, 0);
  const auto tokens = parts.drawn("embed_tokens.weight", {config.vocabulary, config.width});
  parts.may_be_cut(0);
  const auto dropout = parts.dropout(0);
  return std::move(parts).unit(
      [=](const torch::Tensor& ids) { return dropout(embed(tokens, ids, config)); });
}

task::Unit llama_block(const LanguageModelConfig& config, std::int64_t layer) {
  const auto name = fmt::format("model.layers.{}", layer);
  const auto width = config.width, head_width = width / config.heads;
  const auto kv_width = head_width * config.kv_heads;
  UnitParts parts(name, name + ".", config, layer + 1);
  const auto group_width = width / config.kv_heads;  // of heads that share keys and values
  const Matrix q(parts, "self_attn.q_proj", width, width, 0, group_width);
  const Matrix k(parts, "self_attn.k_proj", width, kv_width, 0, head_width);
  const Matrix v(parts, "self_attn.v_proj", width, kv_width, 0, head_width);
  const Matrix gathered(parts, "self_attn.o_proj", width, width, 1, group_width);
  const Matrix gate(parts, "mlp.gate_proj", width, config.hidden, 0);
  const Matrix up(parts, "mlp.up_proj", width, config.hidden, 0);
  const Matrix down(parts, "mlp.down_proj", config.hidden, width, 1);
  const RmsNormalisation before_attention(parts, "input_layernorm", config);
  const RmsNormalisation before_mlp(parts, "post_attention_layernorm", config);
  const auto of_weights = parts.dropout(0), of_attention = parts.dropout(1),
             of_mlp = parts.dropout(2);
  return std::move(parts).unit([=, heads = config.heads, kv_heads = config.kv_heads,
                                theta = config.rope_theta](const torch::Tensor& x) {
    const auto h = task::shared_by_tensor_ranks(before_attention(x));
    const auto queries = split_heads(q(h), head_width), keys = split_heads(k(h), head_width);
    const Rotation rotated(queries, task::first_position(), h.size(1), head_width, theta);
    const auto attention =
        causal_attention(rotated(queries), rotated(keys), split_heads(v(h), head_width),
                         of_weights.rate(), of_weights.layer, heads_here(heads, kv_heads));
    const auto y = x + of_attention(task::sum_over_tensor_ranks(gathered(attention)));
    const auto z = task::shared_by_tensor_ranks(before_mlp(y));
    return y + of_mlp(task::sum_over_tensor_ranks(down(torch::silu(gate(z)) * up(z))));
  });
}

task::Unit llama_head(const LanguageModelConfig& config, const torch::Tensor& embedding) {
  UnitParts parts("head", "", config, config.layers + 1);
  const RmsNormalisation normalised(parts, "model.norm", config);
  const auto weight = config.tied ? parts.shared("lm_head.weight", embedding)
                                  : parts.drawn("lm_head.weight", embedding.sizes());
  parts.may_be_cut(0);
  parts.only_multiplied();
  return std::move(parts).unit([=, tied = config.tied](const torch::Tensor& x) {
    return torch::linear(task::shared_by_tensor_ranks(normalised(x)),
                         tied ? added_in_place(weight) : weight);
  });
}

}  // namespace

task::Model make_llama(const LanguageModelConfig& config, const task::UnitMade& made) {
  task::Model model;
  const auto add = [&](task::Unit unit) {
    made(unit);
    model.units.push_back(std::move(unit));
  };
  add(llama_embedding(config));
  for (std::int64_t layer = 0; layer < config.layers; ++layer) add(llama_block(config, layer));
  add(llama_head(config, model.units.front().parameters.front().tensor));
  return model;
}

}  // namespace bimetal::models

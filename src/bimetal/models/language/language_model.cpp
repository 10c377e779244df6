#include "bimetal/models/language/language_model.h"

#include <fmt/format.h>
#include <torch/csrc/api/include/torch/types.h>

#include <cmath>
#include <utility>

#include "bimetal/models/language/unit_parts.h"
#include "bimetal/task/past.h"
#include "bimetal/task/tensor_ranks.h"

namespace bimetal::models {
namespace {

// GPT-2 (Radford et al., "Language models are unsupervised multitask learners", 2019): learned
// positions, normalisation before each part, GELU by tanh, head tied to the embedding where
// config.tied. Matrices of blocks are [in, out]. Those that end a residual branch are drawn smaller
// by √(2·layers), the number of branches.

struct LayerNormalisation {
  torch::Tensor weight, bias;
  double epsilon;

  LayerNormalisation(UnitParts& parts, const std::string& name, const LanguageModelConfig& config)
      : weight(parts.ones(name + ".weight", config.width)),
        bias(parts.zeros(name + ".bias", config.width)),
        epsilon(config.epsilon) {}
  torch::Tensor operator()(const torch::Tensor& x) const {
    return torch::layer_norm(x, weight.sizes(), weight, bias, epsilon);
  }
};

/// As transformers has it: weight is [in, out]. May be cut by its columns, out.
struct Conv1D {
  torch::Tensor weight, bias;

  Conv1D(UnitParts& parts, const std::string& name, std::int64_t in, std::int64_t out,
         std::int64_t grain, std::int64_t segments)
      : weight(parts.drawn(name + ".weight", {in, out})) {
    parts.may_be_cut(1, grain, segments);
    parts.only_multiplied();
    bias = parts.zeros(name + ".bias", out);
    parts.may_be_cut(0, grain, segments);
    parts.only_multiplied();
  }
  torch::Tensor operator()(const torch::Tensor& x) const {
    return torch::addmm(bias, x.flatten(0, 1), weight).view({x.size(0), x.size(1), weight.size(1)});
  }
};

/// The same that ends a residual branch. May be cut by its rows, in; the bias counts once.
struct LastConv1D {
  torch::Tensor weight, bias;

  LastConv1D(UnitParts& parts, const std::string& name, std::int64_t in, std::int64_t grain,
             const LanguageModelConfig& config)
      : weight(
            parts.drawn(name + ".weight", {in, config.width},
                        kWeightDeviation / std::sqrt(2.0 * static_cast<double>(config.layers)))) {
    parts.may_be_cut(0, grain);
    parts.only_multiplied();
    bias = parts.zeros(name + ".bias", config.width);
    parts.only_multiplied();
  }
  torch::Tensor operator()(const torch::Tensor& x) const {
    const auto rows = x.flatten(0, 1);
    const auto shaped = [&](const torch::Tensor& y) {
      return y.view({x.size(0), x.size(1), weight.size(1)});
    };
    if (!task::current_tensor_ranks()) return shaped(torch::addmm(bias, rows, weight));
    return task::sum_over_tensor_ranks(shaped(torch::mm(rows, weight))) + bias;
  }
};

task::Unit gpt2_embedding(const LanguageModelConfig& config) {
  UnitParts parts("embedding", "transformer.", config, 0);
  const auto tokens = parts.drawn("wte.weight", {config.vocabulary, config.width});
  parts.may_be_cut(0);
  const auto positions = parts.drawn("wpe.weight", {config.context, config.width});
  const auto dropout = parts.dropout(0);
  return std::move(parts).unit([=](const torch::Tensor& ids) {
    const auto x = embed(tokens, ids, config);
    const auto [first, count] = task::positions_here().value_or(task::Part{0, ids.size(1)});
    return dropout(x + positions.narrow(0, task::first_position() + first, count));
  });
}

task::Unit gpt2_block(const LanguageModelConfig& config, std::int64_t layer) {
  const auto name = fmt::format("transformer.h.{}", layer);
  const auto width = config.width, head_width = width / config.heads;
  UnitParts parts(name, name + ".", config, layer + 1);
  const LayerNormalisation before_attention(parts, "ln_1", config);
  const Conv1D qkv(parts, "attn.c_attn", width, 3 * width, head_width, 3);
  const LastConv1D gathered(parts, "attn.c_proj", width, head_width, config);
  const LayerNormalisation before_mlp(parts, "ln_2", config);
  const Conv1D up(parts, "mlp.c_fc", width, config.hidden, 1, 1);
  const LastConv1D down(parts, "mlp.c_proj", config.hidden, 1, config);
  const auto of_weights = parts.dropout(0), of_attention = parts.dropout(1),
             of_mlp = parts.dropout(2);
  return std::move(parts).unit([=, heads = config.heads](const torch::Tensor& x) {
    const auto q_k_v = qkv(task::shared_by_tensor_ranks(before_attention(x))).chunk(3, 2);
    const auto attention =
        causal_attention(split_heads(q_k_v[0], head_width), split_heads(q_k_v[1], head_width),
                         split_heads(q_k_v[2], head_width), of_weights.rate(), of_weights.layer,
                         heads_here(heads, heads));
    const auto y = x + of_attention(gathered(attention));
    const auto z = task::shared_by_tensor_ranks(before_mlp(y));
    return y + of_mlp(down(torch::gelu(up(z), "tanh")));
  });
}

// Llama (Touvron et al., "LLaMA: open and efficient foundation language models", 2023, section
// 2.2), with grouped-query attention as its second edition has it: root-mean-square normalisation
// before each part (Zhang, Sennrich 2019), rotary positions (Su et al. 2021) that turn number i of
// a head with number i + d/2, SwiGLU (Shazeer 2020), no biases.

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

  /// May be cut along `dim`: 0, by its outputs, or 1, by its inputs.
  Matrix(UnitParts& parts, const std::string& name, std::int64_t in, std::int64_t out,
         std::int64_t dim, std::int64_t grain = 1)
      : weight(parts.drawn(name + ".weight", {out, in})) {
    parts.may_be_cut(dim, grain);
    parts.only_multiplied();
  }
  torch::Tensor operator()(const torch::Tensor& x) const { return torch::linear(x, weight); }
};

/// The rotation of each position from `first` on: cosines and sines, [t, d/2]. In float32 at least:
/// the angles grow with the position, and bfloat16 has no digits for them.
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

// Both.

template <typename Normalisation>
task::Unit make_head(const LanguageModelConfig& config, const char* normalisation,
                     const torch::Tensor& embedding) {
  UnitParts parts("head", "", config, config.layers + 1);
  const Normalisation normalised(parts, normalisation, config);
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

std::vector<double> forward_operations(const LanguageModelConfig& config, std::int64_t tokens) {
  const auto t = static_cast<double>(tokens), width = static_cast<double>(config.width);
  const auto heads = static_cast<double>(config.heads), kv = static_cast<double>(config.kv_heads);
  const double attention = 2 * width * width + 2 * width * width * kv / heads;
  const double matrices_of_mlp = config.family == "llama" ? 3 : 2;
  const double mlp = matrices_of_mlp * width * static_cast<double>(config.hidden);
  const double block = 2 * t * (attention + mlp) + 4 * t * t * width;
  std::vector<double> units = {0};  // the embedding looks its rows up
  units.insert(units.end(), static_cast<std::size_t>(config.layers), block);
  units.push_back(2 * t * width * static_cast<double>(config.vocabulary));
  return units;
}

task::Model make_language_model(const LanguageModelConfig& config, const task::UnitMade& made) {
  check_language_model(config);
  const bool gpt2 = config.family == "gpt2";
  task::Model model;
  const auto add = [&](task::Unit unit) {
    made(unit);
    model.units.push_back(std::move(unit));
  };
  add(gpt2 ? gpt2_embedding(config) : llama_embedding(config));
  for (std::int64_t layer = 0; layer < config.layers; ++layer) {
    add(gpt2 ? gpt2_block(config, layer) : llama_block(config, layer));
  }
  const auto embedding = model.units.front().parameters.front().tensor;
  add(gpt2 ? make_head<LayerNormalisation>(config, "transformer.ln_f", embedding)
           : make_head<RmsNormalisation>(config, "model.norm", embedding));
  return model;
}

}  // namespace bimetal::models

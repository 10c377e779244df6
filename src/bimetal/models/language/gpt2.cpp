#include <fmt/format.h>
#include <torch/csrc/api/include/torch/types.h>

#include <cmath>
#include <utility>

#include "bimetal/models/language/attention.h"
#include "bimetal/models/language/language_model.h"
#include "bimetal/models/language/unit_parts.h"
#include "bimetal/task/past.h"
#include "bimetal/task/tensor_ranks.h"

namespace bimetal::models {
namespace {

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

task::Unit gpt2_head(const LanguageModelConfig& config, const torch::Tensor& embedding) {
  UnitParts parts("head", "", config, config.layers + 1);
  const LayerNormalisation normalised(parts, "transformer.ln_f", config);
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

task::Model make_gpt2(const LanguageModelConfig& config, const task::UnitMade& made) {
  task::Model model;
  const auto add = [&](task::Unit unit) {
    made(unit);
    model.units.push_back(std::move(unit));
  };
  add(gpt2_embedding(config));
  for (std::int64_t layer = 0; layer < config.layers; ++layer) add(gpt2_block(config, layer));
  add(gpt2_head(config, model.units.front().parameters.front().tensor));
  return model;
}

}  // namespace bimetal::models

#include "bimetal/models/language/unit_parts.h"

#include <ATen/autocast_mode.h>
#include <fmt/format.h>
#include <torch/csrc/api/include/torch/autograd.h>
#include <torch/csrc/api/include/torch/types.h>
#include <torch/csrc/api/include/torch/utils.h>
#include <torch/csrc/autograd/custom_function.h>

#include <cmath>
#include <limits>
#include <optional>
#include <utility>

#include "bimetal/base/error.h"
#include "bimetal/task/dropout.h"
#include "bimetal/task/past.h"
#include "bimetal/task/tensor_ranks.h"

namespace bimetal::models {

UnitParts::UnitParts(std::string name, std::string prefix, const LanguageModelConfig& config,
                     std::int64_t number)
    : prefix_(std::move(prefix)), dropout_(config.dropout), number_(number) {
  unit_.name = std::move(name);
}

torch::Tensor UnitParts::add(const std::string& name, torch::Tensor parameter) {
  unit_.parameters.push_back({prefix_ + name, parameter.requires_grad_()});
  return parameter;
}

torch::Tensor UnitParts::drawn(const std::string& name, c10::IntArrayRef sizes, double deviation) {
  return add(name, torch::empty(sizes, torch::kFloat32).normal_(0, deviation));
}

torch::Tensor UnitParts::ones(const std::string& name, std::int64_t size) {
  return add(name, torch::ones({size}, torch::kFloat32));
}

torch::Tensor UnitParts::zeros(const std::string& name, std::int64_t size) {
  return add(name, torch::zeros({size}, torch::kFloat32));
}

void UnitParts::may_be_cut(std::int64_t dim, std::int64_t grain, std::int64_t segments) {
  unit_.splits.push_back({unit_.parameters.back().name, dim, grain, segments});
}

void UnitParts::only_multiplied() {
  unit_.products.push_back(unit_.parameters.back().name);
}

torch::Tensor UnitParts::shared(const std::string& name, const torch::Tensor& parameter) {
  return add(name, parameter);
}

torch::Tensor UnitParts::Dropout::operator()(const torch::Tensor& x) const {
  const auto here = task::positions_here();
  return task::dropout_by_sample(x, rate(), layer, {}, here ? here->first : 0);
}

UnitParts::Dropout UnitParts::dropout(std::int64_t place) const {
  return {dropout_, number_ * kMostPlaces + place, training_};
}

task::Unit UnitParts::unit(std::function<torch::Tensor(const torch::Tensor& x)> forward) && {
  unit_.forward = [forward = std::move(forward)](const task::Values& inputs) {
    return task::Values{forward(inputs.front())};
  };
  unit_.set_training = [training = std::move(training_)](bool on) { *training = on; };
  return std::move(unit_);
}

namespace {

void check_tokens(const torch::Tensor& tokens, const LanguageModelConfig& config) {
  if (tokens.dim() != 2 || task::first_position() + tokens.size(1) > config.context) {
    throw Error(
        ErrorCode::InvalidArgument,
        fmt::format("the model takes sequences of up to {} tokens (model.context), not {}",
                    config.context,
                    tokens.dim() == 2 ? task::first_position() + tokens.size(1) : tokens.dim()));
  }
  if (!tokens.is_cpu() || tokens.numel() == 0) return;  // elsewhere a look would hold it up
  const auto [least, most] = tokens.aminmax();
  const auto wrong = least.item<std::int64_t>() < 0 ? least : most;
  if (const auto token = wrong.item<std::int64_t>(); token < 0 || token >= config.vocabulary) {
    throw Error(ErrorCode::InvalidArgument,
                fmt::format("token {} is not in the model's vocabulary of {}: its tokenizer is "
                            "another than the text's",
                            token, config.vocabulary));
  }
}

class WithoutBase : public torch::autograd::Function<WithoutBase> {
 public:
  static torch::Tensor forward(torch::autograd::AutogradContext* /*context*/,
                               const torch::Tensor& weight) {
    return weight;
  }
  static task::Values backward(torch::autograd::AutogradContext* /*context*/,
                               const task::Values& gradients) {
    const auto& gradient = gradients.front();
    // A gradient that is to be differentiated itself keeps its graph.
    const bool alone = gradient.defined() && !torch::GradMode::is_enabled();
    return {alone ? gradient.variable_data() : gradient};
  }
};

}  // namespace

torch::Tensor embed(const torch::Tensor& table, const torch::Tensor& tokens,
                    const LanguageModelConfig& config) {
  check_tokens(tokens, config);
  if (table.size(0) == config.vocabulary) return torch::embedding(table, tokens);
  const auto [first, count] = task::part_here(config.vocabulary);
  const auto rows = tokens - first;
  const auto elsewhere = rows.lt(0).logical_or_(rows.ge(count));
  const auto found = torch::embedding(table, rows.masked_fill(elsewhere, 0));
  return task::sum_over_tensor_ranks(found.masked_fill(elsewhere.unsqueeze(-1), 0));
}

torch::Tensor added_in_place(const torch::Tensor& weight) {
  // Autocast casts the gradient back, into memory of its own, and keeps casts of leaves alone.
  const bool cast = at::autocast::is_autocast_enabled(weight.device().type());
  const bool wanted = torch::GradMode::is_enabled() && weight.requires_grad();
  return wanted && !cast ? WithoutBase::apply(weight) : weight;
}

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

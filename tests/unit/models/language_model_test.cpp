#include "bimetal/models/language/language_model.h"

#include <ATen/record_function.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/api/include/torch/nn.h>
#include <torch/csrc/api/include/torch/utils.h>

#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "bimetal/base/error.h"
#include "bimetal/task/dropout.h"
#include "bimetal/task/past.h"
#include "support/errors.h"

namespace bimetal::models {
namespace {

using ::testing::HasSubstr;
using Shapes = std::map<std::string, std::vector<std::int64_t>>;

LanguageModelConfig small(const std::string& name, double dropout = 0) {
  auto config = resized(language_preset(name), {.layers = 2,
                                                .width = 16,
                                                .heads = 4,
                                                .kv_heads = name == "gpt2" ? 4 : 2,
                                                .hidden = 24,
                                                .context = 12,
                                                .vocabulary = 30});
  config.dropout = dropout;
  return config;
}

task::Model made(const LanguageModelConfig& config, torch::Dtype dtype = torch::kFloat64) {
  torch::manual_seed(5);
  auto model = make_language_model(config);
  model.to(torch::kCPU, dtype);
  return model;
}

torch::Tensor some_tokens(std::int64_t samples, std::int64_t length) {
  return (torch::arange(samples * length) * 7).remainder(30).view({samples, length});
}

torch::Tensor logits_of(const task::Model& model, const torch::Tensor& tokens) {
  return task::run_units(model, {tokens}).front();
}

Shapes shapes_of(const task::Model& model) {
  Shapes shapes;
  for (const auto& named : model.named_parameters()) {
    shapes[named.name] = named.tensor.sizes().vec();
  }
  return shapes;
}

const std::vector<std::string> families = {"gpt2", "llama"};

/// Names of the operations of attention that `work` calls, forward and backward.
std::vector<std::string> attention_in(const std::function<void()>& work) {
  static std::mutex mutex;
  static std::vector<std::string> seen;  // callbacks are plain functions
  seen.clear();
  const auto handle =
      at::addGlobalCallback(at::RecordFunctionCallback([](const at::RecordFunction& call) {
                              const std::string name = call.name();
                              const std::scoped_lock lock(mutex);
                              if (name.find("scaled_dot_product") != name.npos)
                                seen.push_back(name);
                              return std::unique_ptr<at::ObserverContext>();
                            }).scopes({at::RecordScope::FUNCTION}));
  work();
  at::removeCallback(handle);
  return seen;
}

// torch chooses among kernels; one that keeps no matrix of all pairs of tokens is there for CPUs,
// too. This test shows the loss by a mask, a type or a stride that it does not take.
TEST(LanguageModel, AttentionTakesTheFastKernel) {
  for (const auto& family : families) {
    const auto model = made(small(family), torch::kFloat32);
    model.train();
    const auto seen = attention_in([&] { logits_of(model, some_tokens(2, 12)).sum().backward(); });
    EXPECT_THAT(seen, ::testing::Contains("aten::_scaled_dot_product_flash_attention_for_cpu"))
        << family;
    EXPECT_THAT(seen,
                ::testing::Contains("aten::_scaled_dot_product_flash_attention_for_cpu_backward"))
        << family;
    EXPECT_THAT(seen,
                ::testing::Not(::testing::Contains("aten::_scaled_dot_product_attention_math")))
        << family;
  }
}

TEST(LanguageModel, Gpt2HasTransformersParameters) {
  const auto model = made(small("gpt2"));
  Shapes expected = {{"transformer.wte.weight", {30, 16}},
                     {"transformer.wpe.weight", {12, 16}},
                     {"transformer.ln_f.weight", {16}},
                     {"transformer.ln_f.bias", {16}}};
  for (const std::string layer : {"transformer.h.0.", "transformer.h.1."}) {
    const Shapes block = {{"ln_1.weight", {16}},
                          {"ln_1.bias", {16}},
                          {"attn.c_attn.weight", {16, 48}},
                          {"attn.c_attn.bias", {48}},
                          {"attn.c_proj.weight", {16, 16}},
                          {"attn.c_proj.bias", {16}},
                          {"ln_2.weight", {16}},
                          {"ln_2.bias", {16}},
                          {"mlp.c_fc.weight", {16, 24}},
                          {"mlp.c_fc.bias", {24}},
                          {"mlp.c_proj.weight", {24, 16}},
                          {"mlp.c_proj.bias", {16}}};
    for (const auto& [name, sizes] : block) expected[layer + name] = sizes;
  }
  EXPECT_EQ(shapes_of(model), expected);
  EXPECT_EQ(model.tied(),
            (std::vector<std::vector<std::string>>{{"transformer.wte.weight", "lm_head.weight"}}));
}

TEST(LanguageModel, LlamaHasTransformersParameters) {
  auto config = small("llama");
  Shapes expected = {{"model.embed_tokens.weight", {30, 16}},
                     {"model.norm.weight", {16}},
                     {"lm_head.weight", {30, 16}}};
  for (const std::string layer : {"model.layers.0.", "model.layers.1."}) {
    const Shapes block = {
        {"self_attn.q_proj.weight", {16, 16}},    {"self_attn.k_proj.weight", {8, 16}},
        {"self_attn.v_proj.weight", {8, 16}},     {"self_attn.o_proj.weight", {16, 16}},
        {"mlp.gate_proj.weight", {24, 16}},       {"mlp.up_proj.weight", {24, 16}},
        {"mlp.down_proj.weight", {16, 24}},       {"input_layernorm.weight", {16}},
        {"post_attention_layernorm.weight", {16}}};
    for (const auto& [name, sizes] : block) expected[layer + name] = sizes;
  }
  EXPECT_EQ(shapes_of(made(config)), expected);
  config.tied = true;
  expected.erase("lm_head.weight");
  EXPECT_EQ(shapes_of(made(config)), expected);
}

TEST(LanguageModel, UnitsAreEmbeddingBlocksAndHead) {
  const auto model = made(small("llama"));
  std::vector<std::string> names;
  for (const auto& unit : model.units) names.push_back(unit.name);
  EXPECT_THAT(names,
              ::testing::ElementsAre("embedding", "model.layers.0", "model.layers.1", "head"));
}

TEST(LanguageModel, IsDrawnAsPublished) {
  torch::manual_seed(1);
  const auto config =
      resized(language_preset("gpt2"), {.layers = 8, .width = 256, .vocabulary = 500});
  for (const auto& [name, tensor] : make_language_model(config).named_parameters()) {
    if (name.ends_with("bias")) {
      EXPECT_EQ(tensor.abs().max().item<float>(), 0) << name;
    } else if (tensor.dim() == 1) {
      EXPECT_TRUE(tensor.eq(1).all().item<bool>()) << name;
    } else {
      const bool ends_branch = name.ends_with("c_proj.weight");
      const double deviation = ends_branch ? 0.02 / 4 : 0.02;  // √(2·8) branches
      EXPECT_NEAR(tensor.std().item<double>() / deviation, 1, 0.03) << name;
    }
  }
}

TEST(LanguageModel, TakesAnEmptyBatchAndFloat32) {
  for (const auto& family : families) {
    const auto model = made(small(family), torch::kFloat32);
    const auto logits = logits_of(model, some_tokens(0, 5));
    EXPECT_EQ(logits.sizes().vec(), (std::vector<std::int64_t>{0, 5, 30}));
    EXPECT_EQ(logits.scalar_type(), torch::kFloat32);
  }
}

// Weights that are held to be dropped are those of the fused kernels: almost none is dropped here.
TEST(LanguageModel, AttentionIsTheSameFusedOrNot) {
  for (const auto& family : families) {
    const auto fused = logits_of(made(small(family)), some_tokens(2, 12));
    const task::DrawScope scope(task::Draws::of_nobody(2));
    const auto held = logits_of(made(small(family, 1e-12)), some_tokens(2, 12));
    EXPECT_TRUE(held.allclose(fused, 1e-10, 1e-10)) << family;
  }
}

TEST(LanguageModel, RefusesWhatItCannotRead) {
  const auto message = [](const torch::Tensor& tokens) -> std::string {
    return text_of(ErrorCode::InvalidArgument, [&] { logits_of(made(small("gpt2")), tokens); });
  };
  EXPECT_THAT(message(some_tokens(1, 13)), HasSubstr("up to 12 tokens (model.context), not 13"));
  EXPECT_THAT(message(torch::tensor({{3, 30}})), HasSubstr("token 30 is not in"));
  EXPECT_THAT(message(torch::tensor({{-1, 3}})), HasSubstr("token -1 is not in"));
  EXPECT_EQ(message(some_tokens(1, 12)), "");
}

std::string refusal_of(const LanguageModelConfig& config) {
  return text_of(ErrorCode::InvalidArgument, [&] { check_language_model(config); });
}

TEST(LanguageConfig, PresetsAreThePublishedModels) {
  const LanguageModelConfig small{.family = "gpt2",
                                  .layers = 12,
                                  .width = 768,
                                  .heads = 12,
                                  .kv_heads = 12,
                                  .hidden = 3072,
                                  .context = 1024,
                                  .vocabulary = 50257,
                                  .tied = true};
  EXPECT_EQ(language_preset("gpt2"), small);
  const LanguageModelConfig tiny{.family = "llama",
                                 .layers = 22,
                                 .width = 2048,
                                 .heads = 32,
                                 .kv_heads = 4,
                                 .hidden = 5632,
                                 .context = 2048,
                                 .vocabulary = 32000};
  EXPECT_EQ(language_preset("llama-1.1b"), tiny);
  const auto xl = language_preset("gpt2-xl");
  EXPECT_EQ(xl.layers, 48);
  EXPECT_EQ(xl.heads, 25);
  EXPECT_EQ(xl.hidden, 6400);
  for (const auto& name : language_model_names()) {
    EXPECT_TRUE(is_language_model(name));
    EXPECT_EQ(refusal_of(language_preset(name)), "") << name;
  }
  EXPECT_FALSE(is_language_model("cnn"));
}

TEST(LanguageConfig, WhatHangsOnTheWidthFollowsIt) {
  const auto gpt = resized(language_preset("gpt2"), {.layers = 2, .width = 128, .vocabulary = 256});
  EXPECT_EQ(gpt.layers, 2);
  EXPECT_EQ(gpt.heads, 2);
  EXPECT_EQ(gpt.kv_heads, 2);
  EXPECT_EQ(gpt.hidden, 512);
  EXPECT_EQ(gpt.vocabulary, 256);
  EXPECT_EQ(gpt.context, 1024);
  const auto llama = resized(language_preset("llama"), {.width = 128, .heads = 8, .hidden = 300});
  EXPECT_EQ(llama.heads, 8);
  EXPECT_EQ(llama.kv_heads, 4);
  EXPECT_EQ(llama.hidden, 300);
  EXPECT_EQ(resized(language_preset("llama"), {.heads = 6}).kv_heads, 6) << "4 do not divide 6";
  EXPECT_EQ(resized(language_preset("llama"), {.heads = 6, .kv_heads = 2}).kv_heads, 2);
  EXPECT_EQ(resized(language_preset("gpt2"), {}), language_preset("gpt2"));
}

TEST(LanguageConfig, RefusalsSayWhatWouldWork) {
  const auto with = [](const LanguageModelSizes& sizes, const char* name = "gpt2") {
    return refusal_of(resized(language_preset(name), sizes));
  };
  EXPECT_THAT(with({.width = 100, .heads = 3}), HasSubstr("a number of heads that divides it"));
  EXPECT_THAT(with({.heads = 8, .kv_heads = 3}, "llama"), HasSubstr("divides the heads"));
  EXPECT_THAT(with({.kv_heads = 3}), HasSubstr("leave model.kv_heads = 3 out"));
  EXPECT_THAT(with({.width = 12, .heads = 4}, "llama"), HasSubstr("in pairs"));
  EXPECT_THAT(with({.layers = -1}), HasSubstr("model.layers = -1"));
  EXPECT_THAT(with({.context = std::int64_t{1} << 40}), HasSubstr("model.context"));
  auto config = language_preset("gpt2");
  config.dropout = 1;
  EXPECT_THAT(refusal_of(config), HasSubstr("model.dropout = 1"));
  config.family = "bert";
  EXPECT_THAT(refusal_of(config), HasSubstr("gpt2 and llama"));
  expect_error(ErrorCode::InvalidArgument, {"did you mean 'gpt2-xl'"},
               [&] { language_preset("gpt2-xll"); });
}

}  // namespace
}  // namespace bimetal::models

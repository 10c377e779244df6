#include "bimetal/models/language/language_model.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/api/include/torch/nn.h>
#include <torch/csrc/api/include/torch/optim.h>
#include <torch/csrc/api/include/torch/utils.h>

#include <map>
#include <string>
#include <vector>

#include "bimetal/base/error.h"
#include "bimetal/task/draws.h"
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

TEST(LanguageModel, SeesNoLaterToken) {
  for (const auto& family : families) {
    const auto model = made(small(family));
    const auto tokens = some_tokens(3, 10);
    auto changed = tokens.clone();
    changed.narrow(1, 6, 4).add_(1).remainder_(30);
    const auto before = logits_of(model, tokens), after = logits_of(model, changed);
    EXPECT_EQ(before.sizes().vec(), (std::vector<std::int64_t>{3, 10, 30}));
    EXPECT_TRUE(before.narrow(1, 0, 6).allclose(after.narrow(1, 0, 6), 1e-12, 1e-12)) << family;
    EXPECT_FALSE(before.select(1, 6).allclose(after.select(1, 6))) << family;
  }
}

TEST(LanguageModel, PositionsMatter) {
  for (const auto& family : families) {
    const auto model = made(small(family));
    const auto logits =
        logits_of(model, torch::tensor({{3, 5, 9, 4}, {5, 3, 9, 4}}, torch::kInt64));
    EXPECT_FALSE(logits[0][3].allclose(logits[1][3], 1e-5, 1e-8)) << family;
  }
}

/// Logits of `tokens`, given piece by piece.
torch::Tensor logits_in_pieces(const task::Model& model, const torch::Tensor& tokens,
                               const std::vector<std::int64_t>& pieces) {
  const torch::NoGradGuard no_grad;
  task::Past past(tokens.size(1));
  std::vector<torch::Tensor> logits;
  for (const auto piece : pieces) {
    const task::PastScope going_on(past);
    logits.push_back(logits_of(model, tokens.narrow(1, past.length(), piece)));
    EXPECT_TRUE(past.remembers());
    past.advance(piece);
  }
  return torch::cat(logits, 1);
}

TEST(LanguageModel, GoesOnFromItsPast) {
  const auto tokens = some_tokens(2, 12);
  for (const auto& family : families) {
    const auto model = made(small(family, 0.1));
    model.eval();
    const auto whole = logits_of(model, tokens);
    for (const std::vector<std::int64_t>& pieces :
         {std::vector<std::int64_t>{12}, {5, 1, 1, 1, 4}, {1, 11}, {1, 1, 1, 1, 1, 1, 6}}) {
      const auto difference = (logits_in_pieces(model, tokens, pieces) - whole).abs().max();
      EXPECT_LT(difference.item<double>(), 1e-12) << family << ", " << pieces.size() << " pieces";
    }
    EXPECT_THROW(logits_in_pieces(model, some_tokens(2, 13), {12, 1}), Error) << "beyond context";
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

/// Gradients of the sum of samples' logits, by pieces of so many samples.
std::vector<torch::Tensor> gradients(const task::Model& model, const task::Draws& draws,
                                     const torch::Tensor& tokens, std::int64_t piece) {
  for (auto parameter : model.parameters()) parameter.mutable_grad() = torch::Tensor();
  for (std::int64_t begin = 0; begin < tokens.size(0); begin += piece) {
    const auto end = std::min(begin + piece, tokens.size(0));
    const task::DrawScope scope(draws.slice(begin, end));
    logits_of(model, tokens.slice(0, begin, end)).square().sum().backward();
  }
  std::vector<torch::Tensor> found;
  for (const auto& parameter : model.parameters()) found.push_back(parameter.grad());
  return found;
}

double largest_difference(const std::vector<torch::Tensor>& a,
                          const std::vector<torch::Tensor>& b) {
  double largest = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    largest = std::max(largest, ((a[i] - b[i]).abs().max() / b[i].abs().max()).item<double>());
  }
  return largest;
}

TEST(LanguageModel, DropoutHangsNeitherOnMicroBatchesNorOnTheOrder) {
  for (const auto& family : families) {
    const auto model = made(small(family, 0.2));
    const auto tokens = some_tokens(6, 9);
    const task::Draws draws{3, 1, {14, 3, 77, 5, 0, 21}};
    const auto whole = gradients(model, draws, tokens, 6);
    EXPECT_LE(largest_difference(gradients(model, draws, tokens, 2), whole), 1e-12) << family;
    const task::Draws reversed{3, 1, {21, 0, 5, 77, 3, 14}};
    EXPECT_LE(largest_difference(gradients(model, reversed, tokens.flip(0), 4), whole), 1e-12);
    const task::Draws next_epoch{3, 2, draws.samples};
    EXPECT_GT(largest_difference(gradients(model, next_epoch, tokens, 6), whole), 1e-3);
    model.eval();
    const auto plain = logits_of(model, tokens);
    auto without = made(small(family));
    EXPECT_TRUE(plain.equal(logits_of(without, tokens))) << "evaluation drops nothing";
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

TEST(LanguageModel, LearnsAFixedBatch) {
  for (const auto& family : families) {
    const auto model = made(small(family));
    torch::optim::Adam adam(model.parameters(), torch::optim::AdamOptions(1e-2));
    const auto tokens = some_tokens(4, 12);
    double first = 0, last = 0;
    for (int step = 0; step < 40; ++step) {
      adam.zero_grad();
      const auto logits = logits_of(model, tokens.narrow(1, 0, 11));
      const auto loss = torch::nn::functional::cross_entropy(logits.flatten(0, 1),
                                                             tokens.narrow(1, 1, 11).flatten());
      loss.backward();
      adam.step();
      last = loss.item<double>();
      if (step == 0) first = last;
    }
    EXPECT_LT(last, 0.5 * first) << family;
  }
}

}  // namespace
}  // namespace bimetal::models

#include "bimetal/predict/generate.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/api/include/torch/types.h>
#include <torch/csrc/api/include/torch/utils.h>

#include <cmath>
#include <map>

#include "bimetal/base/error.h"
#include "bimetal/models/language/language_model.h"
#include "bimetal/task/past.h"

namespace bimetal::predict {
namespace {

using ::testing::ElementsAre;

constexpr std::int64_t kVocabulary = 8;

/// Foretells the token after the last one, and less and less those beyond.
task::Model counting(std::vector<std::int64_t>* lengths = nullptr) {
  task::Unit unit;
  unit.name = "counting";
  unit.forward = [lengths](const task::Values& inputs) -> task::Values {
    if (lengths) lengths->push_back(inputs[0].size(1));
    const auto next = inputs[0].unsqueeze(2) + 1;
    const auto distance = (torch::arange(kVocabulary) - next).remainder(kVocabulary);
    return {-distance.to(torch::kFloat32)};
  };
  return {{unit}};
}

std::vector<std::int64_t> drawn(const Sampling& sampling) {
  return generate(foretold_by(counting(), torch::kCPU), 4, {0}, sampling);
}

TEST(Generate, TakesTheLikeliestAtTemperatureZero) {
  for (const double temperature : {0.0, 1e-320, 1e-300}) {
    EXPECT_THAT(drawn({.tokens = 9, .temperature = temperature}),
                ElementsAre(1, 2, 3, 4, 5, 6, 7, 0, 1));
  }
  EXPECT_THAT(drawn({.tokens = 3, .top_k = 1}), ElementsAre(1, 2, 3));
}

TEST(Generate, LooksAtNoMoreThanTheContextAndTellsEachToken) {
  std::vector<std::int64_t> lengths, told;
  const auto tokens =
      generate(foretold_by(counting(&lengths), torch::kCPU), 4, {5, 6},
               {.tokens = 4, .temperature = 0}, [&](std::int64_t token) { told.push_back(token); });
  EXPECT_THAT(tokens, ElementsAre(7, 0, 1, 2));
  EXPECT_EQ(told, tokens);
  EXPECT_THAT(lengths, ElementsAre(2, 3, 4, 4));
}

/// Logits 0, −1, −2, … of the steps ahead, so that shares are known.
TEST(Generate, DrawsAsOftenAsTheProbabilitiesSay) {
  for (const double temperature : {0.5, 1.0, 2.0}) {
    for (const std::int64_t top_k : {0, 3}) {
      const auto tokens =
          drawn({.tokens = 4000, .temperature = temperature, .top_k = top_k, .seed = 3});
      std::map<std::int64_t, double> shares;
      std::int64_t before = 0;
      for (const auto token : tokens) {
        shares[(token - before - 1 + 2 * kVocabulary) % kVocabulary] += 1.0 / 4000;
        before = token;
      }
      const auto possible = top_k ? top_k : kVocabulary;
      double sum = 0;
      for (std::int64_t i = 0; i < possible; ++i) sum += std::exp(-double(i) / temperature);
      for (std::int64_t i = 0; i < kVocabulary; ++i) {
        const double expected = i < possible ? std::exp(-double(i) / temperature) / sum : 0;
        EXPECT_NEAR(shares[i], expected, expected == 0 ? 0 : 0.035) << "step " << i;
      }
    }
  }
}

TEST(Generate, IsRepeatedByItsSeed) {
  EXPECT_EQ(drawn({.tokens = 50, .seed = 1}), drawn({.tokens = 50, .seed = 1}));
  EXPECT_NE(drawn({.tokens = 50, .seed = 1}), drawn({.tokens = 50, .seed = 2}));
}

// Those of a model that is given all it may see with every token, its past and beyond its context.
TEST(Generate, APastChangesNothing) {
  for (const std::string family : {"gpt2", "llama"}) {
    torch::manual_seed(3);
    const auto model = models::make_language_model(
        models::resized(models::language_preset(family), {.layers = 2,
                                                          .width = 16,
                                                          .heads = 2,
                                                          .kv_heads = family == "gpt2" ? 2 : 1,
                                                          .hidden = 24,
                                                          .context = 8,
                                                          .vocabulary = 20}));
    model.to(torch::kCPU, torch::kFloat64);
    model.eval();
    task::Unit forgetful;
    forgetful.name = "without a past";
    forgetful.forward = [&](const task::Values& inputs) -> task::Values {
      task::Past empty(inputs[0].size(1));  // in the place of the caller's
      const task::PastScope scope(empty);
      return task::run_units(model, inputs);
    };
    const Sampling sampling{.tokens = 15, .temperature = 1, .seed = 4};
    const auto expected = generate(foretold_by({{forgetful}}, torch::kCPU), 8, {1, 2, 3}, sampling);
    EXPECT_EQ(generate(foretold_by(model, torch::kCPU), 8, {1, 2, 3}, sampling), expected)
        << family;
  }
}

TEST(Generate, RefusesWhatCannotBe) {
  const auto code_of = [](const task::Model& model, std::vector<std::int64_t> prompt,
                          const Sampling& sampling) {
    try {
      generate(foretold_by(model, torch::kCPU), 4, prompt, sampling);
    } catch (const Error& error) {
      return error.code();
    }
    return ErrorCode::Internal;
  };
  EXPECT_EQ(code_of(counting(), {}, {}), ErrorCode::InvalidArgument);
  EXPECT_EQ(code_of(counting(), {1}, {.temperature = -1}), ErrorCode::InvalidArgument);
  EXPECT_EQ(code_of(counting(), {1}, {.temperature = NAN}), ErrorCode::InvalidArgument);
  EXPECT_EQ(code_of(counting(), {1}, {.top_k = -1}), ErrorCode::InvalidArgument);
  EXPECT_EQ(code_of(counting(), {1}, {.tokens = -1}), ErrorCode::InvalidArgument);
  task::Unit broken;
  broken.name = "broken";
  broken.forward = [](const task::Values& inputs) -> task::Values {
    return {torch::full({1, inputs[0].size(1), kVocabulary}, NAN)};
  };
  EXPECT_EQ(code_of({{broken}}, {1}, {}), ErrorCode::NotFinite);
}

}  // namespace
}  // namespace bimetal::predict

// In float32, where sums in another order show in the last digits: loss curves of any number of
// workers agree to rounding.

#include <gtest/gtest.h>
#include <torch/csrc/api/include/torch/types.h>

#include <optional>
#include <string>
#include <vector>

#include "golden/rows.h"

namespace bimetal::golden {
namespace {

std::vector<ShardRow> curve_rows() {
  std::vector<ShardRow> all;
  for (const auto& what : learnt()) {
    const bool of_images = what.plan.learns == Learns::images &&
                           what.plan.update.limits.norm + what.plan.update.limits.value == 0;
    for (const auto& who : ranks()) {
      if (of_images && who.shares.front().size() > 1) all.emplace_back(what, who, 0);
    }
  }
  return all;
}

class Curves : public ::testing::TestWithParam<ShardRow> {};

TEST_P(Curves, AgreeWithOneDevice) {
  const auto& [what, who, level] = GetParam();
  auto plan = what.plan;
  plan.dtype = torch::kFloat32;
  plan.steps = 50;
  const auto expected = train_plainly(plan);
  plan.shares = who.shares;
  plan.micro_batch = who.micro_batch;
  plan.shards = who.shards;
  plan.zero_level = level;
  const auto together = train(plan);
  ASSERT_EQ(together.losses.size(), expected.losses.size());
  for (std::size_t step = 0; step < expected.losses.size(); ++step) {
    EXPECT_NEAR(together.losses[step] / expected.losses[step], 1, 1e-5) << "step " << step;
  }
  EXPECT_LT(expected.losses.back(), 0.6 * expected.losses.front());
}

INSTANTIATE_TEST_SUITE_P(Rows, Curves, ::testing::ValuesIn(curve_rows()), shard_row_name);

// A scale that is a power of two changes no bit, and without an overflow no decision.
TEST(LossScale, LeavesNoTrace) {
  const auto plain = train({.dtype = torch::kFloat32, .shares = {{17, 7}}});
  const auto scaled = train({.dtype = torch::kFloat32,
                             .shares = {{17, 7}},
                             .update = {.scaler = precision::LossScalerOptions{.interval = 9}}});
  for (std::size_t i = 0; i < plain.parameters.size(); ++i) {
    EXPECT_TRUE(scaled.parameters[i].equal(plain.parameters[i])) << "parameter " << i;
  }
}

/// Shards under autocast.
class Lowered : public ::testing::TestWithParam<Learns> {
 protected:
  TrainingPlan plan_ = {.learns = GetParam(),
                        .dtype = torch::kFloat32,
                        .shares = {{17, 7}, {24, 0}},
                        .steps = 4,
                        .micro_batch = 9,
                        .precision = precision::Precision::bfloat16};

  TrainingPlan in_shards(std::optional<torch::ScalarType> half, int level = 3) const {
    auto plan = plan_;
    plan.zero_level = level;
    plan.shards = {3, 1};
    plan.form.half = half;
    return plan;
  }
};

// Gathered in bfloat16, parameters are what autocast would have made of them: no bit of the result
// is another.
TEST_P(Lowered, GathersInHalfWhatAutocastWouldCopy) {
  const auto copied = train(in_shards(std::nullopt)), gathered = train(in_shards(torch::kBFloat16));
  EXPECT_EQ(gathered.losses, copied.losses);
  for (std::size_t i = 0; i < copied.parameters.size(); ++i) {
    EXPECT_EQ(gathered.parameters[i].scalar_type(), torch::kFloat32);
    EXPECT_TRUE(gathered.parameters[i].equal(copied.parameters[i])) << "parameter " << i;
  }
  auto recomputed = in_shards(torch::kBFloat16);
  recomputed.recompute = "all";
  EXPECT_EQ(train(recomputed).losses, copied.losses);
  auto in_backward = in_shards(torch::kBFloat16);
  in_backward.update_in_backward = true;
  EXPECT_EQ(train(in_backward).losses, copied.losses);
}

// Nor where they are whole in bfloat16 from step to step: gradients of micro-batches add up in
// float32, and AdamW's loop unscales, and rounds as autocast does. (A norm would be added up in
// another order, since other parameters lie beside each other.)
TEST_P(Lowered, IsWholeInHalfBelowLevelThree) {
  for (const int level : {1, 2}) {
    for (const auto optimizer : {Optimizer::sgd_momentum, Optimizer::adam, Optimizer::adamw}) {
      const auto run = [&](std::optional<torch::ScalarType> half) {
        auto plan = in_shards(half, level);
        plan.optimizer = optimizer;
        plan.update.scaler = precision::LossScalerOptions{};
        return train(plan);
      };
      const auto copied = run(std::nullopt), whole = run(torch::kBFloat16);
      EXPECT_EQ(whole.losses, copied.losses) << "level " << level;
      for (std::size_t i = 0; i < copied.parameters.size(); ++i) {
        EXPECT_EQ(whole.parameters[i].scalar_type(), torch::kFloat32);
        EXPECT_TRUE(whole.parameters[i].equal(copied.parameters[i])) << "parameter " << i;
      }
    }
  }
}

// Nor where stages hold them for a whole step.
TEST_P(Lowered, GathersInHalfForStages) {
  const auto in_stages = [&](std::optional<torch::ScalarType> half) {
    auto plan = in_shards(half);
    plan.mesh = {.stages = 2, .replicas = 2};
    plan.cuts = {1};
    return train(plan);
  };
  const auto copied = in_stages(std::nullopt), gathered = in_stages(torch::kBFloat16);
  EXPECT_EQ(gathered.losses, copied.losses);
  for (std::size_t i = 0; i < copied.parameters.size(); ++i) {
    EXPECT_TRUE(gathered.parameters[i].equal(copied.parameters[i])) << "parameter " << i;
  }
}

INSTANTIATE_TEST_SUITE_P(Models, Lowered,
                         ::testing::Values(Learns::images, Learns::gpt2, Learns::llama),
                         [](const auto& info) -> std::string {
                           if (info.param == Learns::images) return "Cnn";
                           return info.param == Learns::gpt2 ? "Gpt2" : "Llama";
                         });

}  // namespace
}  // namespace bimetal::golden

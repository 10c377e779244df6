// The same promise where optimizer states, gradients and parameters are in shards of unequal size:
// what one device computes, to rounding.

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <map>
#include <ostream>
#include <string>
#include <tuple>
#include <vector>

#include "golden/tasks.h"
#include "golden/training_run.h"

namespace bimetal::golden {
namespace {

using parallel::shard::Kept;

constexpr int steps = 12;

/// What is trained, whoever does it.
struct Learnt {
  std::string name;
  TrainingPlan plan;
};

/// By whom.
struct Ranks {
  std::string name;
  std::vector<std::vector<std::int64_t>> shares;
  std::vector<double> shards;
};

train::UpdateOptions clipped() {
  train::UpdateOptions update;
  update.limits.norm = 0.05;
  return update;
}

train::UpdateOptions scaled() {
  auto update = clipped();
  update.scaler.emplace();
  return update;
}

// Without Adam for language models: gradients that are 0 but for rounding (of the keys' biases)
// would be divided by themselves. AdamW has an epsilon that is large beside these.
const std::vector<Learnt>& learnt() {
  static const std::vector<Learnt> all = {
      {"Cnn", {.optimizer = Optimizer::adam, .steps = steps}},
      {"Gpt2", {.learns = Learns::gpt2, .dropout = 0.1, .steps = steps}},
      {"Gpt2Recomputed",
       {.learns = Learns::gpt2, .dropout = 0.1, .steps = steps, .recompute = "all"}},
      {"Gpt2RecomputedBySqrt", {.learns = Learns::gpt2, .steps = steps, .recompute = "sqrt"}},
      {"LlamaClipped", {.learns = Learns::llama, .steps = steps, .update = clipped()}},
      {"CnnInMicroBatches", {.steps = steps, .micro_batch = 3}},
      {"Gpt2InMicroBatches", {.learns = Learns::gpt2, .steps = steps, .micro_batch = 2}},
      {"TokensTied", {.learns = Learns::tokens, .steps = steps}},
      {"CnnOffloadedToHost", {.optimizer = Optimizer::adam, .steps = steps, .offload = "host"}},
      {"CnnOffloadedToDisk", {.optimizer = Optimizer::adam, .steps = steps, .offload = "disk"}},
      {"Gpt2OffloadedToDisk",
       {.learns = Learns::gpt2,
        .dropout = 0.1,
        .optimizer = Optimizer::adamw,
        .steps = steps,
        .update = clipped(),
        .offload = "disk"}},
      {"LlamaOffloadedToDiskScaled",
       {.learns = Learns::llama,
        .optimizer = Optimizer::adamw,
        .steps = steps,
        .micro_batch = 4,
        .update = scaled(),
        .recompute = "sqrt",
        .offload = "disk",
        .kept = Kept::OnDisk}},
      {"TokensTiedKeptOnDisk",
       {.learns = Learns::tokens,
        .optimizer = Optimizer::adamw,
        .steps = steps,
        .kept = Kept::OnDisk}},
  };
  return all;
}

const std::vector<Ranks>& ranks() {
  static const std::vector<Ranks> all = {
      {"Two3To1", {{6, 18}}, {3, 1}},
      {"Three5To2To0", {{12, 8, 4}, {4, 0, 20}}, {5, 2, 0}},
      {"OneOfTwoComputes", {{24, 0}, {0, 24}}, {1, 3}},
      {"One", {{24}}, {1}},
  };
  return all;
}

using Case = std::tuple<Learnt, Ranks, int>;

std::string name_of(const ::testing::TestParamInfo<Case>& info) {
  const auto& [what, who, level] = info.param;
  return what.name + "Level" + std::to_string(level) + who.name;
}

const TrainingResult& alone(const Learnt& what) {
  static std::map<std::string, TrainingResult> known;
  const auto [place, fresh] = known.try_emplace(what.name);
  if (fresh) {
    auto plan = what.plan;
    plan.shares = {{24}};
    plan.micro_batch = 1000;
    plan.recompute = "none";
    place->second = train(plan);
  }
  return place->second;
}

class ZeroExact : public ::testing::TestWithParam<Case> {};

TEST_P(ZeroExact, TrainsAsOneDevice) {
  const auto& [what, who, level] = GetParam();
  const auto& expected = alone(what);
  auto plan = what.plan;
  plan.shares = who.shares;
  plan.shards = who.shards;
  plan.zero_level = level;
  const auto result = train(plan);
  ASSERT_EQ(result.parameters.size(), expected.parameters.size());
  for (std::size_t i = 0; i < result.parameters.size(); ++i) {
    const auto difference = (result.parameters[i] - expected.parameters[i]).abs().max();
    EXPECT_LT(difference.item<double>(), 1e-12) << "parameter " << i;
  }
  for (std::size_t i = 0; i < expected.losses.size(); ++i) {
    EXPECT_NEAR(result.losses[i], expected.losses[i], 1e-12) << "step " << i + 1;
  }
}

INSTANTIATE_TEST_SUITE_P(Rows, ZeroExact,
                         ::testing::Combine(::testing::ValuesIn(learnt()),
                                            ::testing::ValuesIn(ranks()),
                                            ::testing::Values(1, 2, 3)),
                         name_of);

}  // namespace
}  // namespace bimetal::golden

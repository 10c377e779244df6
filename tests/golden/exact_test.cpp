// The product's first promise: the training is the one that a single device would have done. It
// does not matter who computes, how a global batch is shared out, and where states, gradients and
// parameters are kept.

#include <gtest/gtest.h>
#include <torch/csrc/api/include/torch/nn.h>

#include <stdexcept>
#include <string>
#include <vector>

#include "golden/rows.h"

namespace bimetal::golden {
namespace {

std::vector<ShardRow> rows() {
  std::vector<ShardRow> all;
  for (int level = 0; level <= 3; ++level) {
    for (const auto& who : ranks()) {
      for (const auto& what : learnt()) {
        if (level == 0 || (what.in_shards && who.in_shards)) all.emplace_back(what, who, level);
      }
      for (const auto& what : learnt_offloaded()) {
        if (level > 0 && who.in_shards) all.emplace_back(what, who, level);
      }
      for (const auto& what : learnt_updated_in_backward()) {
        if (level == 3 && who.in_shards) all.emplace_back(what, who, level);
      }
    }
  }
  return all;
}

class Exact : public ::testing::TestWithParam<ShardRow> {};

TEST_P(Exact, TrainsAsOneDevice) {
  const auto& [what, who, level] = GetParam();
  const auto& expected = alone(what);
  auto plan = what.plan;
  plan.shares = who.shares;
  plan.micro_batch = who.micro_batch;
  plan.shards = who.shards;
  plan.zero_level = level;
  const auto result = train(plan);
  expect_same(result, expected);
}

INSTANTIATE_TEST_SUITE_P(Rows, Exact, ::testing::ValuesIn(rows()), shard_row_name);

// The rows must be able to fail: every training learns, and each of what makes it another one moves
// its parameters far more than the tolerance.
TEST(Exactness, TheTrainingsAreNotTrivial) {
  for (const auto& what : learnt()) {
    const auto task = make_task(what.plan);
    const auto start = make_start(*task, seed + 100).parameters();
    EXPECT_LT(loss_with(alone(what).parameters, *task), 0.995 * loss_with(start, *task))
        << what.name;
  }
  auto other_batch = learnt().front().plan;
  other_batch.shares = {{25}};
  EXPECT_GT(largest_difference(train(other_batch).parameters, alone(learnt().front()).parameters),
            1e-3);
}

TEST(Exactness, LimitsDropoutAndOptimizersShow) {
  const auto of = [](const std::string& name) -> const TrainingResult& {
    for (const auto& what : learnt()) {
      if (what.name == name) return alone(what);
    }
    throw std::out_of_range(name);
  };
  for (const std::string name : {"CnnAdam", "CnnLars", "CnnLamb", "CnnClippedByNorm",
                                 "CnnClippedByValue", "CnnClippedByBoth"}) {
    EXPECT_GT(largest_difference(of(name).parameters, of("CnnSgd").parameters), 1e-3) << name;
  }
  EXPECT_GT(largest_difference(of("Gpt2Dropout").parameters, of("Gpt2").parameters), 1e-4);
  EXPECT_GT(largest_difference(of("LlamaDropoutClipped").parameters, of("Llama").parameters), 1e-4);
}

// The reference is torch's own mean, over samples and over tokens.
TEST(Exactness, MeansAreTorchsOwn) {
  const std::vector<std::int64_t> samples = {3, 60, 2, 199};
  for (const auto learns : {Learns::images, Learns::tokens}) {
    const auto task = make_task({.learns = learns});
    const auto model = make_start(*task, seed);
    const auto batch = task->training()->batch(samples);
    const auto logits = task::run_units(model, task->inputs(batch)).front();
    const auto torchs =
        torch::nn::functional::cross_entropy(logits.flatten(0, -2), batch.back().flatten());
    EXPECT_NEAR(mean_loss(*task, model, 0, samples).item<double>(), torchs.item<double>(), 1e-14);
  }
}

}  // namespace
}  // namespace bimetal::golden

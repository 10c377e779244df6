// Levels of ZeRO among the replicas of a pipeline's stages.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "bimetal/plan/mesh/data_choice.h"
#include "bimetal/plan/mesh/mesh_advice.h"
#include "bimetal/plan/mesh/pipeline_choice.h"
#include "bimetal/plan/mesh/tensor_groups.h"
#include "mesh_clusters.h"

namespace bimetal::plan {
namespace {

using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::Le;

/// 24 units of a million parameters each, and next to no activations; `halved`: of their weights
/// autocast makes copies.
MeshInput of_units(std::int64_t batch, bool halved = false) {
  ModelFacts facts;
  facts.units.assign(24, {.parameters = 1'000'000,
                          .halved = halved ? 1'000'000 : 0,
                          .output = {0, 1e3},
                          .saved = {0, 1e4},
                          .forward_s = {0, 1e-3},
                          .backward_s = {0, 2e-3}});
  facts.state_bytes = 8;
  auto input = input_of(std::move(facts), batch);
  input.bucket_mb = 1;
  input.uneven = false;
  return input;
}

Cluster four_with(double memory) {
  return apart(std::vector<double>(4, 1), std::vector<double>(4, memory), kFastLink);
}

/// Of the plans that fit, the one of two stages with two replicas each.
const MeshChoice* two_by_two(const MeshPlan& plan) {
  const auto found = std::ranges::find_if(plan.best, [](const MeshChoice& choice) {
    return choice.scheme == Scheme::Pipeline && choice.stages.size() == 2 && choice.even &&
           choice.stages[0].replicas() == 2;
  });
  return found == plan.best.end() ? nullptr : &*found;
}

/// The level that it takes with so much memory.
int level_with(double memory, bool halved = false) {
  const auto cluster = four_with(memory);
  const auto plan = plan_mesh(of_units(2, halved), cluster);
  const auto* const choice = two_by_two(plan);
  if (!choice) return -1;
  EXPECT_THAT(choice->peak_bytes, Each(Le(memory)));
  const auto level = "zero.level=" + std::to_string(choice->keeping.level);
  EXPECT_THAT(keys_of(*choice), HasSubstr(level));
  return choice->keeping.level;
}

// 48 MB of parameters a stage: with their gradients, states and buckets 240, in shards of states
// 144, of gradients, too, 120; and a flat tensor of 4 MB, or several, on its way.
TEST(StageLevels, ReplicasTakeShardsWhereMemoryIsShort) {
  EXPECT_EQ(level_with(250e6), 0);
  EXPECT_EQ(level_with(160e6), 1);
  EXPECT_EQ(level_with(140e6), 2);
  EXPECT_EQ(level_with(130e6), -1);
}

// Autocast's copies and their gradients are as much again; at level 3 parameters come in half.
TEST(StageLevels, HalfParametersSpeakForLevel3) {
  EXPECT_EQ(level_with(145e6, true), 3);
  EXPECT_EQ(level_with(145e6, false), 2);
}

TEST(StageLevels, StagesOfOneReplicaHaveNone) {
  const auto cluster = apart({1, 1}, {200e6, 200e6}, kFastLink);
  for (const auto& choice : plan_mesh(of_units(8), cluster).best) {
    if (choice.scheme != Scheme::Pipeline) continue;
    EXPECT_EQ(choice.keeping.level, 0);
  }
}

TEST(StageLevels, AJobThatNoLevelGoesWithHasNone) {
  auto input = of_units(2);
  input.most_level = 0;
  const auto plan = plan_mesh(input, four_with(160e6));
  for (const auto* const list : {&plan.best, &plan.others}) {
    for (const auto& choice : *list) EXPECT_EQ(choice.keeping.level, 0);
  }
}

// From level 2 on gradients go to who keeps them with each micro-batch, and parameters once: at
// level 3 in the type that they are used in.
TEST(StageLevels, MoreIsSentWithEachMicroBatch) {
  const auto input = of_units(8, true);
  const auto cluster = four_with(64 * kGiB);
  const std::vector<int> pair = {0, 1};
  const auto sent = [&](int level) {
    return choose_cut(input, cluster, {{0, 1}, {2, 3}},
                      {.micro_batches = 4, .keeping = {.level = level}})
        ->sent_s;
  };
  const double once = cluster.all_reduce_seconds(pair, 48e6);
  const double half = cluster.all_reduce_seconds(pair, 24e6);
  EXPECT_NEAR(sent(1), once, 1e-9);
  EXPECT_NEAR(sent(2), (4 * once + once) / 2, 1e-9);
  EXPECT_NEAR(sent(3), (4 * once + half) / 2, 1e-9);
}

// Without stages level 3 gathers twice for each; and all levels in the type that parameters come
// in, if ranks have the same.
TEST(DataChoice, LevelsGatherInTheTypeThatParametersComeIn) {
  auto input = of_units(8, true);
  input.micro_batch = 1;
  const auto cluster = four_with(64 * kGiB);
  const std::vector<int> pair = {0, 1};
  const auto sent = [&](const Keeping& keeping) {
    return choose_data(input, cluster, pair, keeping)->sent_s;
  };
  const double once = cluster.all_reduce_seconds(pair, 96e6);
  const double half = cluster.all_reduce_seconds(pair, 48e6);
  EXPECT_NEAR(sent({.level = 0}), once, 1e-9);
  EXPECT_NEAR(sent({.level = 1}), (once + half) / 2, 1e-9);
  EXPECT_NEAR(sent({.level = 2}), (4 * once + half) / 2, 1e-9);
  EXPECT_NEAR(sent({.level = 3}), (4 * once + 8 * half) / 2, 1e-9);
  input.facts.front().alike = false;
  EXPECT_NEAR(sent({.level = 3}), (4 * once + 8 * once) / 2, 1e-9);
}

// Levels 1 and 2 have whole in full then what is in half.
TEST(StageLevels, AnEvaluationIsPlannedIfThereIsOne) {
  auto input = of_units(4, /*halved=*/true);
  const auto cluster = four_with(64 * kGiB);
  const auto evaluated = choose_data(input, cluster, {0, 1}, {.level = 1});
  input.evaluates = false;
  const auto trained = choose_data(input, cluster, {0, 1}, {.level = 1});
  ASSERT_TRUE(evaluated && trained);
  EXPECT_LT(trained->peak_bytes.front(), evaluated->peak_bytes.front());
  EXPECT_FALSE(
      TensorGroups(input, cluster, with_weights(Groups{{0, 1}, {2, 3}}, {1, 1})).input().evaluates);
}

}  // namespace
}  // namespace bimetal::plan

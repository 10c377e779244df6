// Levels of ZeRO among the replicas that have the same part of every tensor, and what heaps keep.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "bimetal/plan/mesh/mesh_plan.h"
#include "bimetal/plan/mesh/mesh_search.h"
#include "bimetal/plan/mesh/tensor_groups.h"
#include "mesh_clusters.h"

namespace bimetal::plan {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::SizeIs;

/// Two heads, and activations that are nothing beside the parameters.
ModelFacts two_headed() {
  return transformer_facts(
      {.layers = 12, .width = 768, .context = 16, .vocabulary = 8192, .heads = 2});
}

/// The bytes of all that belongs to the model's parameters on one device.
double sixteen_bytes_each(const ModelFacts& facts) {
  return 16 * static_cast<double>(facts.elements());
}

MeshInput with_small_buckets(std::int64_t batch) {
  auto input = input_of(two_headed(), batch);
  input.bucket_mb = 1;
  return input;
}

Cluster with_heaps(const Cluster& cluster) {
  auto devices = cluster.devices();
  for (auto& device : devices) device.keeps_freed = true;
  return {std::move(devices), cluster.network()};
}

TEST(TensorShards, WhatAllRanksHaveStaysWholeAtLevel3) {
  ModelFacts facts;
  facts.by_units = true;
  // 3 heads of 60 elements, 10 columns of 100, 8 that are whole; of 18 small ones 10 are cut.
  facts.units = {{.parameters = 168,
                  .resident = 18,
                  .halved = 150,
                  .output = {0, 10},
                  .in_parts = {.splits = {{3, 60, 60, 0}, {10, 100, 100, 0}}, .output = 0}}};
  const std::vector<double> weights = {2, 1};
  const auto part = facts_in_parts(facts, weights, 0);
  const double cut = (40.0 + 70) / 160;
  EXPECT_EQ(part.units[0].resident, 15) << "8 and " << 10 * cut;
  EXPECT_EQ(part.units[0].parameters, 8 + 40 + 70);
  EXPECT_LE(part.units[0].halved, part.units[0].parameters - part.units[0].resident);
  EXPECT_DOUBLE_EQ(part.units[0].output.per_sample, 10 * cut) << "positions are in parts, too";
  EXPECT_FALSE(part.by_units);
}

TEST(TensorShards, StatesAreAmongTheReplicasOfAPart) {
  const auto input = with_small_buckets(4);
  const auto cluster = apart({1, 1, 1, 1}, {3 * kGiB, 4 * kGiB, 1 * kGiB, 4 * kGiB}, kFastLink);
  const TensorGroups groups({input, cluster}, with_weights(Groups{{0, 1}, {2, 3}}, {1, 1}));
  for (const int level : {1, 2, 3}) {
    const auto choice = choose_data(groups.problem(), {0, 1}, {.level = level});
    ASSERT_TRUE(choice);
    const auto expanded = groups.expanded(*choice);
    ASSERT_THAT(expanded.peak_bytes, SizeIs(4));
    const std::vector<double> shards = {0.75, 0.5, 0.25, 0.5};
    for (std::size_t member = 0; member < 4; ++member) {
      const auto samples = static_cast<double>(choice->stages[0].samples[member / 2]);
      const RankLoad load{.ranks = 2,
                          .shard = shards[member],
                          .samples = samples,
                          .at_once = samples / choice->micro_batches,
                          .bucket_bytes = 1 << 20};
      const std::vector<double> weights = {1, 1};
      const auto part = facts_in_parts(input.facts.front(), weights, member % 2);
      EXPECT_DOUBLE_EQ(expanded.peak_bytes[member],
                       memory_use(part, {.level = level}, load, 0).model())
          << "level " << level << ", rank " << member;
    }
  }
}

// Two heads: no more than two parts. Nothing but shards of parts is small enough.
TEST(TensorShards, Level1WithTensorsInPartsFitsWhereNothingElseDoes) {
  const auto input = with_small_buckets(4);
  const double memory = 0.44 * sixteen_bytes_each(input.facts.front());
  const auto cluster = apart({1, 1, 1, 1}, std::vector(4, memory), kFastLink);
  StagesWish wish{.stages = 1, .tensor = 0};
  for (const auto& choice : choose_stages({input, cluster}, wish)) EXPECT_FALSE(choice.fits());
  wish.keeping.level = 1;
  const auto choices = choose_stages({input, cluster}, wish);
  ASSERT_FALSE(choices.empty());
  EXPECT_TRUE(choices.front().fits());
  EXPECT_EQ(choices.front().most_parts(), 2u);
  EXPECT_EQ(choices.front().stages[0].replicas(), 2u);
  EXPECT_THAT(describe(cluster, choices.front()), HasSubstr("× 2 replicas, ZeRO level 1"));
  for (const auto& choice : choices) EXPECT_EQ(choice.fits(), (choice.most_parts() == 2));
}

TEST(TensorShards, APlanHasTheLevelThatPartsNeed) {
  auto input = with_small_buckets(4);
  const double memory = 0.44 * sixteen_bytes_each(input.facts.front());
  const auto cluster = apart({1, 1, 1, 1}, std::vector(4, memory), kFastLink);
  const auto of_one_stage = [](const MeshChoice& choice) {
    return choice.scheme == Scheme::Tensor;
  };
  const auto plan = plan_mesh({input, cluster});
  const auto found = std::ranges::find_if(plan.best, of_one_stage);
  ASSERT_NE(found, plan.best.end());
  EXPECT_GT(found->keeping.level, 0);
  EXPECT_THAT(keys_of(*found), HasSubstr("mesh.replicas=2, zero.level="));
  input.level_in_parts = 0;
  const auto without = plan_mesh({input, cluster});
  EXPECT_EQ(std::ranges::find_if(without.best, of_one_stage), without.best.end());
}

TEST(MeshPeaks, WhatHeapsKeepMakesNothingNotFit) {
  const auto cluster = with_heaps(apart({1, 1}, {kGiB, kGiB}, kFastLink));
  MeshChoice choice;
  choice.stages = {{.devices = {1}}, {.devices = {0}}};
  constexpr double kLittle = 1 << 20;
  choice.take_peaks(cluster, {kGiB - kLittle, kGiB});
  EXPECT_TRUE(choice.fits());
  EXPECT_THAT(choice.kept_bytes, ElementsAre(kLittle / 2, 0));
  EXPECT_THAT(choice.peak_bytes, ElementsAre(kGiB - kLittle, kGiB));
  choice.take_peaks(cluster, {kGiB - kLittle, kGiB + kLittle});
  EXPECT_EQ(choice.missing_bytes, kLittle);
  EXPECT_EQ(choice.missing_on, 0);
}

}  // namespace
}  // namespace bimetal::plan

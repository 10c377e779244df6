#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "bimetal/plan/memory/memory_use.h"
#include "bimetal/plan/mesh/mesh_plan.h"
#include "bimetal/plan/mesh/mesh_search.h"
#include "bimetal/plan/mesh/tensor_groups.h"
#include "mesh_clusters.h"

namespace bimetal::plan {
namespace {

using ::testing::ElementsAre;

/// Of 1,000 parameters a unit, those of the first used by the last as well; without activations.
ModelFacts two_units() {
  ModelFacts facts;
  facts.units = {{.name = "embedding", .parameters = 600, .shared = 400},
                 {.name = "block", .parameters = 1000},
                 {.name = "head"}};
  facts.element_bytes = 4;
  facts.state_bytes = 8;
  return facts;
}

StageLoad of_replicas(double replicas, int level) {
  return {.replicas = replicas, .keeping = {.level = level}};
}

MemoryUse use_of(const ModelFacts& facts, UnitRange piece, const StageLoad& load) {
  return stage_use(facts, std::span(&piece, 1), load);
}

double bytes_of(const ModelFacts& facts, UnitRange piece, const StageLoad& load) {
  return use_of(facts, piece, load).model();
}

/// Without gradients on their way.
double kept_bytes(const ModelFacts& facts, UnitRange piece, const StageLoad& load) {
  const auto use = use_of(facts, piece, load);
  return use.model() - (load.keeping.level > 0 ? use.buffers : 0);
}

constexpr UnitRange kBlock{1, 2};

TEST(StageMemory, ReplicasShareWhatTheirLevelCuts) {
  const auto facts = two_units();
  EXPECT_EQ(kept_bytes(facts, kBlock, of_replicas(1, 0)), 1000 * (4 + 4 + 8));
  EXPECT_EQ(kept_bytes(facts, kBlock, of_replicas(2, 0)), 1000 * (4 + 4 + 8 + 4)) << "buckets";
  EXPECT_EQ(kept_bytes(facts, kBlock, of_replicas(2, 1)), 1000 * (4 + 4 + 8 / 2));
  EXPECT_EQ(kept_bytes(facts, kBlock, of_replicas(2, 2)), 1000 * (4 + 4 / 2 + 8 / 2));
  const auto use = use_of(facts, kBlock, of_replicas(2, 2));
  EXPECT_EQ(use.parameters, 4000);
  EXPECT_EQ(use.gradients, 2000);
  EXPECT_EQ(use.optimizer, 4000);
}

TEST(StageMemory, ShardsMayBeUnequal) {
  const auto facts = two_units();
  auto load = of_replicas(2, 2);
  load.shard = 0.75;
  EXPECT_EQ(kept_bytes(facts, kBlock, load), 1000 * (4 + 4 * 0.75 + 8 * 0.75));
  load.keeping.level = 0;
  EXPECT_EQ(kept_bytes(facts, kBlock, load), kept_bytes(facts, kBlock, of_replicas(2, 0)));
}

// In a step all are whole, and a shard lies in the whole; or, of what comes in half or stays,
// beside it. Autocast then makes no copies.
TEST(StageMemory, ParametersAreWholeInAStepAtLevel3) {
  auto facts = two_units();
  EXPECT_EQ(kept_bytes(facts, kBlock, of_replicas(2, 3)),
            kept_bytes(facts, kBlock, of_replicas(2, 2)));
  facts.units[1].halved = 700;
  facts.units[1].resident = 100;
  facts.units[1].saved = {.fixed = 700 * 2 + 50};
  // Below it autocast copies what is used in half, and these copies have gradients.
  EXPECT_EQ(kept_bytes(facts, kBlock, of_replicas(2, 2)),
            1000 * (4 + 4 / 2 + 8 / 2) + 2 * 700 * 2 + 50);
  EXPECT_EQ(kept_bytes(facts, kBlock, of_replicas(2, 3)),
            300 * 4 + 700 * 2 + (700 + 100) * 4 / 2 + 1000 * (4 / 2 + 8 / 2) + 50);
  // If ranks compute in several types, parameters come whole, and are copied.
  facts.alike = false;
  EXPECT_EQ(kept_bytes(facts, kBlock, of_replicas(2, 3)),
            1000 * 4 + 100 * 4 / 2 + 1000 * (4 / 2 + 8 / 2) + 2 * 700 * 2 + 50);
}

// Other stages add to its gradient behind the last micro-batch.
TEST(StageMemory, WhatStagesHaveInCommonIsWholeAtLevel2) {
  const auto facts = two_units();
  EXPECT_EQ(kept_bytes(facts, {0, 1}, of_replicas(4, 2)), 600 * (4 + 1 + 2) + 400 * (4 + 4 + 2));
  EXPECT_EQ(kept_bytes(facts, {1, 3}, of_replicas(4, 2)), 1000 * (4 + 1 + 2) + 400 * (4 + 4 + 2));
}

/// Without parameters; an output of 10 bytes is saved with all else.
ModelFacts activations_alone() {
  ModelFacts facts;
  facts.units.assign(8, {.output = {.fixed = 10},
                         .saved = {.fixed = 100},
                         .forward_peak = {.fixed = 110},
                         .backward_peak = {.fixed = 130}});
  return facts;
}

TEST(StageMemory, WhatAStageHasGotIsKeptAsWhatItHasComputed) {
  const auto facts = activations_alone();
  EXPECT_EQ(bytes_of(facts, {0, 3}, {.in_flight = 4}), 4 * 300 + 30);
  EXPECT_EQ(bytes_of(facts, {4, 7}, {.in_flight = 4}), 4 * (10 + 300) + 30);
}

TEST(StageMemory, OfSeveralPiecesOneIsAtWork) {
  const auto facts = activations_alone();
  const std::vector<UnitRange> pieces = {{0, 2}, {4, 6}};
  EXPECT_EQ(stage_use(facts, pieces, {.in_flight = 2}).activations, 2 * (400 + 10) + 30);
}

TEST(StageMemory, FitsWhereAllDevicesOfAStageHaveRoom) {
  const auto facts = activations_alone();
  const StageDevice two{&facts, {}, 230}, three{&facts, {}, 330};
  EXPECT_THAT(fitting_ends(std::vector{three}, 5), ElementsAre(true, true, false));
  EXPECT_THAT(fitting_ends(std::vector{three, two}, 0),
              ElementsAre(true, true, false, false, false, false, false, false));
  auto twice = three;
  twice.load.in_flight.moments = {{1, 1}};
  EXPECT_THAT(fitting_ends(std::vector{twice}, 6), ElementsAre(true, false)) << "of each chunk";
}

TEST(StageMemory, OfStatesOnADiskAWindowIsInMemory) {
  auto facts = two_units();
  StageLoad load = of_replicas(1, 1);
  load.keeping.optimizer = Place::Disk;
  EXPECT_EQ(bytes_of(facts, {1, 3}, load), 1000 * (4 + 4 + 4) + 400 * (4 + 4) + 1400 * 8)
      << "smaller than a window";
  facts.units[1].parameters = 4'000'000;
  EXPECT_EQ(bytes_of(facts, {1, 3}, load), 4e6 * (4 + 4 + 4) + 400 * (4 + 4) + kDiskWindow);
}

// An accelerator's states, and its shard of the parameters; what a step has whole is on it.
TEST(StageMemory, WhatIsOnTheHostIsNotOnTheDevice) {
  auto facts = two_units();
  facts.units[1].halved = 700;
  auto load = of_replicas(2, 1);
  load.keeping.optimizer = Place::Host;
  const auto of_cpu = use_of(facts, kBlock, load);
  EXPECT_EQ(of_cpu.optimizer, 1000 * 8 / 2);
  EXPECT_EQ(of_cpu.host, 0);
  load.host_is_device = false;
  const auto use = use_of(facts, kBlock, load);
  EXPECT_EQ(use.optimizer, 0);
  EXPECT_EQ(use.host, 1000 * 8 / 2);
  EXPECT_EQ(use.model(), of_cpu.model() - 1000 * 8 / 2);
  load.keeping = {.level = 3, .parameters = Place::Host};
  const auto level3 = use_of(facts, kBlock, load);
  EXPECT_EQ(level3.optimizer, 0);
  EXPECT_EQ(level3.parameters, 300 * 4 + 700 * 2);
  EXPECT_EQ(level3.host, 1000 * (8 + 4) / 2);
  load.keeping.parameters = Place::Disk;
  EXPECT_EQ(use_of(facts, kBlock, load).parameters, 300 * 4 + 700 * 2);
  EXPECT_EQ(use_of(facts, kBlock, load).host, 1000 * 8 / 2);
}

// Levels of ZeRO among the replicas of a pipeline's stages.
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

/// Among the plans that fit, the one of two stages with two replicas each.
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
  const auto plan = plan_mesh({of_units(2, halved), cluster});
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
  for (const auto& choice : plan_mesh({of_units(8), cluster}).best) {
    if (choice.scheme != Scheme::Pipeline) continue;
    EXPECT_EQ(choice.keeping.level, 0);
  }
}

TEST(StageLevels, AJobThatNoLevelGoesWithHasNone) {
  auto input = of_units(2);
  input.most_level = 0;
  const auto plan = plan_mesh({input, four_with(160e6)});
  for (const auto* const list : {&plan.best, &plan.others}) {
    for (const auto& choice : *list) EXPECT_EQ(choice.keeping.level, 0);
  }
}

// Without stages level 3 gathers twice for each; and all levels in the type that parameters come
// in, if ranks have the same.
TEST(DataChoice, LevelsGatherInTheTypeThatParametersComeIn) {
  auto input = of_units(8, true);
  input.micro_batch = 1;
  const auto cluster = four_with(64 * kGiB);
  const std::vector<int> pair = {0, 1};
  const auto sent = [&](const Keeping& keeping) {
    return choose_data({input, cluster}, pair, keeping)->sent_s;
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
  const auto evaluated = choose_data({input, cluster}, {0, 1}, {.level = 1});
  input.evaluates = false;
  const auto trained = choose_data({input, cluster}, {0, 1}, {.level = 1});
  ASSERT_TRUE(evaluated && trained);
  EXPECT_LT(trained->peak_bytes.front(), evaluated->peak_bytes.front());
  EXPECT_FALSE(TensorGroups({input, cluster}, with_weights(Groups{{0, 1}, {2, 3}}, {1, 1}))
                   .problem()
                   .input.evaluates);
}

}  // namespace
}  // namespace bimetal::plan

#include "bimetal/plan/mesh/stage_memory.h"

#include <gtest/gtest.h>

namespace bimetal::plan {
namespace {

/// Of 1,000 parameters a unit, those of the first used by the last as well; without activations.
ModelFacts two_units() {
  ModelFacts facts;
  facts.units = {{.name = "embedding", .parameters = 600, .shared = 400},
                 {.name = "block", .parameters = 1000}};
  facts.element_bytes = 4;
  facts.state_bytes = 8;
  return facts;
}

StageLoad of_replicas(double replicas, int level) {
  return {.replicas = replicas, .keeping = {.level = level}};
}

TEST(StageMemory, ReplicasShareWhatTheirLevelCuts) {
  const auto facts = two_units();
  EXPECT_EQ(unit_bytes(facts, 1, of_replicas(1, 0)), 1000 * (4 + 4 + 8));
  EXPECT_EQ(unit_bytes(facts, 1, of_replicas(2, 0)), 1000 * (4 + 4 + 8 + 4));  // and buckets
  EXPECT_EQ(unit_bytes(facts, 1, of_replicas(2, 1)), 1000 * (4 + 4 + 8 / 2));
  EXPECT_EQ(unit_bytes(facts, 1, of_replicas(2, 2)), 1000 * (4 + 4 / 2 + 8 / 2));
}

TEST(StageMemory, ShardsMayBeUnequal) {
  const auto facts = two_units();
  auto load = of_replicas(2, 2);
  load.shard = 0.75;
  EXPECT_EQ(unit_bytes(facts, 1, load), 1000 * (4 + 4 * 0.75 + 8 * 0.75));
  load.keeping.level = 0;
  EXPECT_EQ(unit_bytes(facts, 1, load), unit_bytes(facts, 1, of_replicas(2, 0)));
}

// In a step all are whole, and a shard lies in the whole; or, of what comes in half or stays,
// beside it. Autocast then makes no copies.
TEST(StageMemory, ParametersAreWholeInAStepAtLevel3) {
  auto facts = two_units();
  EXPECT_EQ(unit_bytes(facts, 1, of_replicas(2, 3)), unit_bytes(facts, 1, of_replicas(2, 2)));
  facts.units[1].halved = 700;
  facts.units[1].resident = 100;
  facts.units[1].saved = {.fixed = 700 * 2 + 50};
  // Below it autocast copies what is used in half, and these copies have gradients.
  EXPECT_EQ(unit_bytes(facts, 1, of_replicas(2, 2)), 1000 * (4 + 4 / 2 + 8 / 2) + 2 * 700 * 2 + 50);
  EXPECT_EQ(unit_bytes(facts, 1, of_replicas(2, 3)),
            300 * 4 + 700 * 2 + (700 + 100) * 4 / 2 + 1000 * (4 / 2 + 8 / 2) + 50);
}

// Other stages add to its gradient behind the last micro-batch.
TEST(StageMemory, WhatStagesHaveInCommonIsWholeAtLevel2) {
  const auto facts = two_units();
  EXPECT_EQ(unit_bytes(facts, 0, of_replicas(4, 2)), 600 * (4 + 1 + 2) + 400 * (4 + 4 + 2));
  const auto last = stage_bytes(facts, 1, 2, of_replicas(4, 2));
  const double passing = passing_bytes(facts, of_replicas(4, 2));
  EXPECT_EQ(last, 1000 * (4 + 1 + 2) + 400 * (4 + 4 + 2) + passing);
}

TEST(StageMemory, GradientsOnTheirWayCountFromLevel1On) {
  const auto facts = two_units();
  EXPECT_EQ(passing_bytes(facts, of_replicas(2, 0)), 0);
  EXPECT_EQ(passing_bytes(facts, of_replicas(2, 1)), 1000 * 4);
  EXPECT_EQ(passing_bytes(facts, of_replicas(2, 2)), 4 * 1000 * 4);
}

// However many micro-batches are in flight, whatever units behind have left in what was measured.
TEST(StageMemory, CopiesOfParametersCountOnceAndWithTheirUnit) {
  ModelFacts facts;
  const UnitFacts block{.parameters = 1000,
                        .halved = 900,
                        .saved = {.fixed = 1800 + 50},
                        .forward_peak = {.fixed = 1800 + 60},
                        .backward_peak = {.fixed = 1800 + 70}};
  facts.units = {block, block};
  facts.units[0].backward_peak.fixed = 2 * 1800 + 70;
  const StageLoad load{.in_flight = 3};
  EXPECT_EQ(unit_bytes(facts, 0, load), 1000 * (4 + 4) + 900 * (2 + 2) + 3 * 50);
  EXPECT_EQ(passing_bytes(facts, load), 70 - 50);
  EXPECT_EQ(stage_bytes(facts, 0, 1, load), 1000 * (4 + 4) + 900 * (2 + 2) + 3 * 50 + 20);
  const StageLoad again{.keeping = {.recomputed_at_once = 1}};
  EXPECT_EQ(unit_bytes(facts, 0, again), 1000 * (4 + 4) + 900 * 2);
}

TEST(StageMemory, OfStatesOnADiskAWindowIsInMemory) {
  auto facts = two_units();
  StageLoad load = of_replicas(1, 1);
  load.keeping.optimizer = Place::Disk;
  EXPECT_EQ(unit_bytes(facts, 1, load), 1000 * (4 + 4));
  EXPECT_EQ(stage_bytes(facts, 1, 2, load), 1000 * (4 + 4 + 4) + 400 * (4 + 4) + 1400 * 8)
      << "smaller than a window";
  facts.units[1].parameters = 4'000'000;
  EXPECT_EQ(stage_bytes(facts, 1, 2, load), 4e6 * (4 + 4 + 4) + 400 * (4 + 4) + kDiskWindow);
}

}  // namespace
}  // namespace bimetal::plan

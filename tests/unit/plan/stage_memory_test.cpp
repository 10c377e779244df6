#include "bimetal/plan/mesh/stage_memory.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

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
  // Where ranks compute in several types they come whole, and are copied.
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

// What is not trained is on each stage that uses it, without gradients, states or buckets.
TEST(StageMemory, FrozenParametersAreNothingButThere) {
  auto facts = two_units();
  facts.units[0].frozen = 5000;
  facts.units[0].frozen_shared = 3000;
  facts.units[1].frozen = 700;
  EXPECT_EQ(facts.frozen_bytes(), 5700);
  for (const int level : {0, 1, 2, 3}) {
    const auto plain = two_units();
    const auto load = of_replicas(2, level);
    const auto more = [&](UnitRange piece) {
      return use_of(facts, piece, load).model() - use_of(plain, piece, load).model();
    };
    EXPECT_EQ(more({0, 1}), 5000);
    EXPECT_EQ(more(kBlock), 700);
    EXPECT_EQ(more({1, 3}), 700 + 3000);
    EXPECT_EQ(use_of(facts, kBlock, load).parameters, 4000 + 700);
  }
}

/// Units of 1,000 parameters, of which nothing but gradients is to be looked at.
ModelFacts units_of(std::size_t count) {
  ModelFacts facts;
  facts.units.assign(count, {.parameters = 1000});
  return facts;
}

// Level 1's wait whole but for those that are sent, of which there are sums; level 2's go with each
// micro-batch. A flat tensor has at least a bucket's size, and ends with a unit.
TEST(StageMemory, GradientsOnTheirWayAreInFlatTensors) {
  const auto facts = units_of(20);
  const auto way = [&](double replicas, int level, double bucket, std::size_t units = 18) {
    auto load = of_replicas(replicas, level);
    load.bucket_bytes = bucket;
    return use_of(facts, {0, units}, load).buffers;
  };
  EXPECT_EQ(way(2, 0, 4000), 18 * 4000) << "buckets";
  EXPECT_EQ(way(2, 1, 0), 4000 * (1 + 3 * 0.5));
  EXPECT_EQ(way(2, 1, 9000), 3 * 4000 * (1 + 3 * 0.5));
  EXPECT_EQ(way(2, 1, 1e9), 18 * 4000) << "no more than there are";
  EXPECT_EQ(way(1, 1, 9000), 3 * 4000) << "what one rank has is the sum";
  EXPECT_EQ(way(2, 2, 9000), 4 * 3 * 4000);
  EXPECT_EQ(way(2, 2, 1e9, 2), 4 * 2 * 4000) << "of several micro-batches";
  EXPECT_EQ(way(2, 3, 9000), 4 * 4000) << "unit by unit";
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
  StageLoad load{.in_flight = 3};
  EXPECT_EQ(bytes_of(facts, {0, 1}, load), 1000 * (4 + 4) + 900 * (2 + 2) + 3 * 50 + 20);
  // When a unit is computed again the last one's copies are those of the two other micro-batches.
  load.keeping.recomputed_at_once = 1;
  EXPECT_EQ(use_of(facts, {0, 2}, load).activations, 2 * 900 * 2 + 3 * 50 + 4000 + 20);
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

// Of groups but the last only the inputs are kept, of the last, with which backward begins, all:
// of every micro-batch. A group that is computed again has that of one beside them, and what the
// stage has given, and got for it.
TEST(StageMemory, UnitsAreComputedAgainInGroups) {
  auto facts = activations_alone();
  const auto of = [&](UnitRange piece, std::size_t at_once, double in_flight) {
    return bytes_of(facts, piece,
                    {.in_flight = in_flight, .keeping = {.recomputed_at_once = at_once}});
  };
  EXPECT_EQ(of({1, 5}, 1, 3), 3 * (4 * 10 + 100) + 130 - 100 + 20);
  EXPECT_EQ(of({1, 5}, 2, 3), 3 * (2 * 10 + 200) + 230 - 200 + 20);
  EXPECT_EQ(of({1, 6}, 2, 3), 3 * (3 * 10 + 100) + 230 - 100 + 20) << "two again, the last gone";
  EXPECT_EQ(of({1, 8}, 2, 3), 3 * (4 * 10 + 100) + 230 - 100) << "the last stage gives nothing";
  EXPECT_EQ(of({1, 5}, 4, 3), of({1, 5}, 0, 3)) << "one group: nothing is dropped";
  EXPECT_LT(of({1, 6}, 4, 3), of({1, 5}, 4, 3)) << "a unit more, and four fewer are kept";
  // Their gradients come together.
  facts.units[2].parameters = 1000;
  EXPECT_EQ(of({1, 6}, 2, 3), 3 * (3 * 10 + 100) + 230 - 100 + 20 + 1000 * (4 + 4) + 4000);
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

}  // namespace
}  // namespace bimetal::plan

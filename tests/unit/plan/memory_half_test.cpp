// Parameters that are whole in half.
#include <gtest/gtest.h>

#include "bimetal/plan/memory/memory_plan.h"
#include "unit/plan/memory_ranks.h"

namespace bimetal::plan {
namespace {

using namespace test;

/// All of whose parameters are; the copies that autocast makes of them are in the figures.
ModelFacts four_halved() {
  auto facts = four_units();
  double behind = 0;
  for (std::size_t u = facts.units.size(); u-- > 0;) {
    auto& unit = facts.units[u];
    unit.halved = unit.parameters;
    const double copies = 2.0 * static_cast<double>(unit.parameters);
    unit.saved.fixed += copies;
    unit.forward_peak.fixed += copies;
    unit.backward_peak.fixed += behind += copies;
  }
  return facts;
}

// In shards parameters are whole in half, and autocast makes no copies; without they are in the
// figures.
TEST(MemoryUse, ParametersThatComeInHalfTakeHalf) {
  auto halved = four_halved();
  auto facts = halved;
  for (auto& unit : facts.units) unit.halved = 0;
  const auto load = load_of(0.5);
  const auto exact = memory_use(facts, {.level = 3}, load, 0);
  const auto half = memory_use(halved, {.level = 3}, load, 0);
  EXPECT_LT(half.parameters, exact.parameters);
  EXPECT_LE(half.activations, exact.activations - 8 * kMiB);
  for (const int level : {1, 2}) {
    // Two bytes of each parameter, and of half of them four; in an evaluation of all.
    const auto many = load_of(0.5, 16, 16);
    const auto whole = memory_use(halved, {.level = level}, many, 0);
    EXPECT_DOUBLE_EQ(whole.parameters, (8 + 8) * kMiB) << whole.moment;
    EXPECT_LE(whole.model(), memory_use(facts, {.level = level}, many, 0).model() - 8 * kMiB);
    const auto evaluated = memory_use(halved, {.level = level}, load, 0);
    EXPECT_EQ(evaluated.moment, "evaluation");
    EXPECT_DOUBLE_EQ(evaluated.parameters, (8 + 8 + 16) * kMiB);
    auto trains_alone = load;
    trains_alone.evaluates = false;
    const auto trained = memory_use(halved, {.level = level}, trains_alone, 0);
    EXPECT_NE(trained.moment, "evaluation");
    EXPECT_LT(trained.model(), evaluated.model());
    // But where another rank's shards are kept, too.
    const Keeping copied = {.level = level, .copies = 2};
    EXPECT_DOUBLE_EQ(memory_use(halved, copied, load, 0).model(),
                     memory_use(facts, copied, load, 0).model());
  }
  EXPECT_DOUBLE_EQ(memory_use(halved, {}, load, 0).model(), memory_use(facts, {}, load, 0).model());
  // Copies stay, also those of units that are computed again: here when the last one's backward
  // is at its peak.
  facts.units.back().backward_peak.per_sample = 40 * kMiB;
  halved.units.back().backward_peak.per_sample = 40 * kMiB;
  const Keeping recomputed = {.recomputed_at_once = 1};
  EXPECT_DOUBLE_EQ(memory_use(halved, recomputed, load, 0).activations,
                   memory_use(facts, recomputed, load, 0).activations + 6 * kMiB);
}

// Where ranks compute in several types parameters come in their own, and some make copies of them.
TEST(MemoryUse, RanksThatAreNotAlikeHaveNothingInHalf) {
  auto halved = four_halved();
  auto facts = halved;
  for (auto& unit : facts.units) unit.halved = 0;
  halved.alike = false;
  const auto load = load_of(0.5);
  for (const int level : {1, 2, 3}) {
    const auto exact = memory_use(facts, {.level = level}, load, 0);
    const auto copied = memory_use(halved, {.level = level}, load, 0);
    EXPECT_DOUBLE_EQ(copied.parameters, exact.parameters) << level;
    EXPECT_NE(copied.moment, "evaluation");
    EXPECT_DOUBLE_EQ(copied.model(), exact.model()) << level;
    EXPECT_EQ(gathered_bytes(halved, {.level = level}), halved.parameter_bytes());
  }
}

// With copies of another's shard that is so at level 3 alone.
TEST(MemoryPlan, WhatComesInHalfIsHalfAsMuchToSend) {
  const auto facts = four_halved();
  EXPECT_EQ(gathered_bytes(facts, {.level = 0}), 16 * kMiB);
  for (const int level : {1, 2, 3}) {
    EXPECT_EQ(gathered_bytes(facts, {.level = level}), 8 * kMiB);
    EXPECT_EQ(gathered_bytes(facts, {.level = level, .copies = 2}), (level < 3 ? 16 : 8) * kMiB);
  }
  const auto level3_s = [](bool alike) {
    auto input = two_ranks(1000 * kMiB);
    for (auto& rank : input.ranks) {
      rank.facts = four_halved();
      rank.facts.alike = alike;
      rank.compute_s = 0;
    }
    input.asked = {.level = 3, .copies = 2};
    input.link = {0, 16 * kMiB};  // the parameters in a second
    const auto plan = plan_memory(input);
    double level1_s = 0;
    for (const auto& way : plan.ways) {
      if (way.keeping == Keeping{.level = 1, .copies = 2}) level1_s = way.added_s;
    }
    return plan.asked().added_s - level1_s;
  };
  // Of three passes two are gathers; the other rank's shard is two thirds of them.
  EXPECT_NEAR(level3_s(false), 2.0 / 3 * (3 - 2), 1e-9);
  EXPECT_NEAR(level3_s(true), 0, 1e-9);
}

}  // namespace
}  // namespace bimetal::plan

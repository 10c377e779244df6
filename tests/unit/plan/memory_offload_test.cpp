// Plans of memory where states and parameters are not on the device, or not on every rank's.

#include <gtest/gtest.h>

#include <algorithm>

#include "bimetal/plan/memory/memory_plan.h"
#include "unit/plan/memory_ranks.h"

namespace bimetal::plan {
namespace {

using namespace test;

TEST(MemoryPlan, EachRankKeepsItAsItHasBeenTold) {
  auto input = two_ranks(1000 * kMiB);
  for (auto& rank : input.ranks) rank.load.shard = 0.5;
  input.asked.level = 3;
  input.ranks[1].optimizer = input.ranks[1].parameters = Place::Disk;
  const auto plan = plan_memory(input);
  const auto& asked = plan.asked();
  EXPECT_DOUBLE_EQ(
      asked.uses[1].model(),
      memory_use(four_units(), asked_of(input, input.ranks[1]), load_of(0.5), 0).model());
  EXPECT_LT(asked.uses[1].parameters + 7 * kMiB, asked.uses[0].parameters);
  EXPECT_TRUE(asked.unlike);
  EXPECT_EQ(describe(asked), "level 3, offloaded as each rank has it");
  auto alike = input;
  alike.ranks[0].optimizer = alike.ranks[0].parameters = Place::Disk;
  EXPECT_EQ(describe(plan_memory(alike).asked()), "level 3, states and parameters on disk");
  // The disk of one is as slow as those of both.
  auto none = input;
  none.ranks[1].optimizer = none.ranks[1].parameters = Place::Device;
  EXPECT_GT(asked.added_s, plan_memory(none).asked().added_s);
}

TEST(MemoryPlan, WhetherItMayRecomputeIsEachRanksOwn) {
  auto input = two_ranks(1000 * kMiB);
  input.ranks[1].may_recompute = true;
  const auto least = at_least(input, true);
  EXPECT_EQ(least.ranks[0].units_at_once, 0u);
  EXPECT_EQ(least.ranks[1].units_at_once, 1u);
  EXPECT_EQ(at_least(input, false).ranks[1].units_at_once, 0u);
}

/// Two accelerators of one host, which has so much.
MemoryInput two_accelerators(double room, double host_room) {
  auto input = two_ranks(room);
  for (auto& rank : input.ranks) {
    rank.load.host_is_device = false;
    rank.load.shard = 0.5;
    rank.host_pool = "host cpu";
    rank.host_room = host_room;
  }
  return input;
}

TEST(MemoryPlan, AHostIsAWayForAccelerators) {
  const auto on_host = [](const MemoryPlan& plan) {
    return std::ranges::count_if(
        plan.ways, [](const KeptJob& way) { return way.keeping.optimizer == Place::Host; });
  };
  EXPECT_EQ(on_host(plan_memory(two_ranks(1e9))), 0) << "CPUs";
  const auto plenty = plan_memory(two_accelerators(1e9, 1e9));
  EXPECT_EQ(on_host(plenty), 8);  // levels 1, 2, 3 and 3 with parameters, recomputed or not
  EXPECT_EQ(*plenty.best, 0u);
  // A way that needs the host is cheaper than one that needs a disk, and the host must have room,
  // too.
  auto tight = two_accelerators(0, 1e9);
  for (auto& rank : tight.ranks) rank.facts.state_bytes = 32;
  const auto least = memory_use(tight.ranks[0].facts,
                                {.level = 3, .optimizer = Place::Host, .recomputed_at_once = 1},
                                tight.ranks[0].load, 0);
  for (auto& rank : tight.ranks) rank.room = least.model();
  const auto way = plan_memory(tight);
  ASSERT_TRUE(way.best);
  EXPECT_EQ(way.ways[*way.best].keeping.optimizer, Place::Host);
  for (auto& rank : tight.ranks) rank.host_room = 100 * kMiB;  // each would have 64
  const auto other = plan_memory(tight);
  ASSERT_TRUE(other.best);
  EXPECT_EQ(other.ways[*other.best].keeping.optimizer, Place::Disk);
}

TEST(ShardsByRoom, AHostHasToHaveRoomForWhatIsKeptThere) {
  auto input = two_accelerators(1000 * kMiB, 1000 * kMiB);
  input.asked.level = 1;
  for (auto& rank : input.ranks) rank.optimizer = Place::Host;
  EXPECT_EQ(shards_by_room(input), (std::vector<double>{0.5, 0.5}));
  input.ranks[1].host_pool = "other host";
  input.ranks[1].host_room = 10 * kMiB;
  input.ranks[0].host_room = 40 * kMiB;
  const auto shards = shards_by_room(input);
  ASSERT_EQ(shards.size(), 2u);
  EXPECT_NEAR(shards[0] / shards[1], 4, 0.1);
}

TEST(MemoryPlan, SaysWhatIsKeptWhere) {
  EXPECT_EQ(describe(Keeping{.level = 1, .optimizer = Place::Host}), "level 1, states on the host");
  EXPECT_EQ(describe(Keeping{.level = 3, .optimizer = Place::Host, .parameters = Place::Host}),
            "level 3, states and parameters on the host");
  EXPECT_EQ(describe(Keeping{.level = 3, .optimizer = Place::Disk, .parameters = Place::Host}),
            "level 3, states on disk, parameters on the host");
}

// Parameters that are whole in half.

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

// If ranks compute in several types, parameters come in their own, and some ranks copy them.
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

}  // namespace
}  // namespace bimetal::plan

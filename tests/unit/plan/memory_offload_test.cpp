// Plans of memory where states and parameters are not on the device, or not on every rank's.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

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

TEST(ShardsByRoom, WhoOffloadsHasRoomForMore) {
  auto input = two_ranks(200 * kMiB);
  for (auto& rank : input.ranks) rank.facts.state_bytes = 32;
  input.asked.level = 1;
  input.ranks[1].optimizer = Place::Disk;
  const auto shards = shards_by_room(input);
  ASSERT_EQ(shards.size(), 2u);
  EXPECT_GT(shards[1], 1.5 * shards[0]);
}

TEST(MemoryPlan, ADisksSecondsAreThoseOfWhatLiesThere) {
  const auto facts = four_units();
  const auto seconds = [&](const Keeping& keeping, double gathers) {
    return disk_seconds(facts, keeping, 1000, gathers) * kDiskBytesPerS;
  };
  EXPECT_EQ(seconds({.level = 3, .optimizer = Place::Host}, 1), 0);
  const double states = 2 * 1000 * facts.state_bytes, parameters = 1000 * facts.element_bytes;
  EXPECT_DOUBLE_EQ(seconds({.level = 3, .optimizer = Place::Disk}, 4), states);
  EXPECT_DOUBLE_EQ(seconds({.level = 3, .parameters = Place::Disk}, 4), 5 * parameters);
  EXPECT_DOUBLE_EQ(seconds({.level = 3, .optimizer = Place::Disk, .parameters = Place::Disk}, 1),
                   states + 2 * parameters);
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

TEST(MemoryPlan, WhatIsOnTheHostCountsThere) {
  auto load = load_of(0.5);
  load.host_is_device = false;
  const auto facts = four_units();
  const auto here = memory_use(facts, {.level = 3}, load, 0);
  EXPECT_EQ(here.host, 0);
  const auto states = memory_use(facts, {.level = 3, .optimizer = Place::Host}, load, 0);
  EXPECT_EQ(states.optimizer, 0);
  EXPECT_DOUBLE_EQ(states.host, 16 * kMiB);  // 8 bytes of half of 4 Mi parameters
  const auto both = memory_use(facts, {.level = 3, .parameters = Place::Host}, load, 0);
  EXPECT_EQ(both.optimizer, 0) << "states are beside them";
  EXPECT_DOUBLE_EQ(both.host, 24 * kMiB);
  EXPECT_LT(both.model(), states.model());
  const auto disk =
      memory_use(facts, {.level = 3, .optimizer = Place::Disk, .parameters = Place::Disk}, load, 0);
  EXPECT_LE(disk.host, 24 * kMiB) << "a window";
  load.host_is_device = true;
  EXPECT_EQ(memory_use(facts, {.level = 3, .optimizer = Place::Host}, load, 0).host, 0);
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
  // What needs the host is cheaper than what needs a disk, and has to have room there, too.
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

}  // namespace
}  // namespace bimetal::plan

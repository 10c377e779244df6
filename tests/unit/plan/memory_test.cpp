#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>

#include "bimetal/base/error.h"
#include "bimetal/plan/memory/memory_plan.h"
#include "unit/plan/memory_ranks.h"

namespace bimetal::plan {
namespace {

using namespace test;
using ::testing::HasSubstr;
using ::testing::Not;

TEST(Linear, GoesThroughBothMeasurements) {
  const auto line = Linear::through(2, 30, 6, 70);
  EXPECT_DOUBLE_EQ(line.at(2), 30);
  EXPECT_DOUBLE_EQ(line.at(10), 110);
  EXPECT_DOUBLE_EQ(Linear::through(1, 5, 1, 5).at(8), 5);
  EXPECT_GE(Linear::through(1, 1, 4, 8).fixed, 0);
}

TEST(MemoryUse, OfOneRankIsSixteenBytesAParameterAndActivations) {
  auto load = load_of(1);
  load.ranks = 1;
  const auto use = memory_use(four_units(), {}, load, 100 * kMiB);
  EXPECT_DOUBLE_EQ(use.parameters, 16 * kMiB);
  EXPECT_DOUBLE_EQ(use.optimizer, 32 * kMiB);
  EXPECT_DOUBLE_EQ(use.program, 100 * kMiB);
  // At the end of backward all gradients are there, or at its beginning all activations.
  EXPECT_GE(use.gradients + use.activations, 16 * kMiB);
  EXPECT_LE(use.model(), (16 + 32 + 16 + 4 * 4.5) * kMiB);
}

TEST(MemoryPlan, StepsThatAreMeasuredBeforeTrainingAreNoReasonToRefuseIt) {
  auto input = two_ranks(200 * kMiB);
  for (auto& rank : input.ranks) {  // an accelerator takes its global batch at once, if it can
    rank.load.rehearsed = rank.load.rehearsed_at_once = 256;
  }
  EXPECT_TRUE(clearly_fails(input, plan_memory(input)));
  const auto least = at_least(input, false);
  EXPECT_FALSE(clearly_fails(least, plan_memory(least)));
}

// Each of six lacks a sixth of what all lack, which is less than a tenth of what there is.
TEST(MemoryPlan, FailsClearlyByATenthOfWhatThereIsWhoeverSharesIt) {
  auto input = two_ranks(std::numeric_limits<double>::infinity());
  const auto rank = input.ranks.back();
  input.ranks.assign(6, rank);
  for (auto& each : input.ranks) each.pool = "host";
  double all = 0;
  const auto plan = plan_memory(input);
  for (const auto& use : plan.asked().uses) all += use.model();
  const auto fails = [&](double over) {
    for (auto& each : input.ranks) each.pool_room = all / over;
    return clearly_fails(input, plan_memory(input));
  };
  EXPECT_FALSE(fails(1.05));
  EXPECT_TRUE(fails(1.2));
  EXPECT_TRUE(lacks_much(/*needed=*/12, /*missing=*/2));
  EXPECT_FALSE(lacks_much(12, 1));
  EXPECT_FALSE(lacks_much(0, 0));
}

// They keep a piece's activations beside those of one that is not recorded, and all gradients.
TEST(MemoryUse, GraphsKeepActivationsAndGradients) {
  auto load = load_of(1);
  load.ranks = 1;
  const auto without = memory_use(four_units(), {}, load, 0);
  load.graphs = true;
  const auto with = memory_use(four_units(), {}, load, 0);
  EXPECT_DOUBLE_EQ(with.gradients, 4 * 4 * kMiB);
  EXPECT_GE(with.activations, without.activations + 4 * (3 + 1.5) * kMiB);
  const auto sharded = memory_use(four_units(), {.level = 1}, load, 0);
  load.graphs = false;
  EXPECT_DOUBLE_EQ(sharded.model(), memory_use(four_units(), {.level = 1}, load, 0).model());
}

// Seven flat tensors: while the first unit goes backward its own is being filled and three are on
// their way; of these and the others this rank has its part of the sum, or the place for it.
TEST(MemoryUse, WhatIsOnItsWayIsThereBesideItsSum) {
  auto facts = four_units();
  for (int u = 0; u < 3; ++u) facts.units.push_back(facts.units.back());
  for (auto& unit : facts.units) unit.saved = unit.forward_peak = {};
  facts.units.front().backward_peak = {0, 50 * kMiB};
  const auto use = memory_use(facts, {.level = 1}, load_of(0.5), 0);
  EXPECT_EQ(use.moment, "backward");
  EXPECT_DOUBLE_EQ(use.buffers, 4 * 4 * kMiB);
  EXPECT_DOUBLE_EQ(use.gradients, 0.5 * 6 * 4 * kMiB);
  // The tensor that the first unit shares comes when all else of it has gone: with its gradient's
  // parts, which are in the unit's figure, there is no copy of it yet.
  facts.units.front().shared = 1 << 22;
  EXPECT_DOUBLE_EQ(memory_use(facts, {.level = 1}, load_of(0.5), 0).buffers, use.buffers);
}

// Room for three flat tensors, or for the largest, is there before backward needs it.
TEST(MemoryUse, RanksOfOneHostSetRoomAsideForWhatIsOnItsWay) {
  auto facts = four_units();
  auto load = load_of(0.5, 64, 64);
  const auto apart = memory_use(facts, {.level = 2}, load, 0);
  load.one_host = true;
  const auto together = memory_use(facts, {.level = 2}, load, 0);
  EXPECT_EQ(together.moment, apart.moment);
  EXPECT_LT(apart.buffers, 3 * 4 * kMiB);
  EXPECT_DOUBLE_EQ(together.buffers, 3 * 4 * kMiB);
  facts.units.back().shared = 1 << 23;
  EXPECT_DOUBLE_EQ(memory_use(facts, {.level = 2}, load, 0).buffers, 32 * kMiB);
  EXPECT_DOUBLE_EQ(memory_use(facts, {}, load, 0).buffers, facts.parameter_bytes());
}

TEST(MemoryUse, RecomputationKeepsInputsAlone) {
  const auto all = memory_use(four_units(), {}, load_of(1, 16, 16), 0);
  const auto dropped = memory_use(four_units(), {.recomputed_at_once = 1}, load_of(1, 16, 16), 0);
  EXPECT_LT(dropped.activations, 0.6 * all.activations);
  EXPECT_GE(dropped.activations, 16 * (3 * 0.25 + 1.5) * kMiB * 0.99);
}

TEST(MemoryUse, CopiesOfAnothersShardAreKeptAsShardsAre) {
  auto load = load_of(0.5);
  load.copied = 0.25;
  const auto once = memory_use(four_units(), {.level = 3}, load, 0);
  const auto twice = memory_use(four_units(), {.level = 3, .copies = 2}, load, 0);
  EXPECT_DOUBLE_EQ(twice.optimizer, 1.5 * once.optimizer);
  EXPECT_DOUBLE_EQ(twice.parameters, once.parameters + 0.25 * 16 * kMiB);
}

TEST(MemoryPlan, EachCopyIsOnTheNextRankWithAShard) {
  EXPECT_THAT(copied_shards({0.5, 0, 0.3, 0.2}), ::testing::ElementsAre(0.2, 0, 0.5, 0.3));
  EXPECT_THAT(copied_shards({0, 1}), ::testing::ElementsAre(0, 0));
  auto input = two_ranks(1000 * kMiB);
  input.asked = {.level = 1, .copies = 2};
  const auto plan = plan_memory(input);
  EXPECT_DOUBLE_EQ(plan.asked().uses[0].optimizer, plan.asked().uses[1].optimizer);
  for (const auto& way : plan.ways) EXPECT_EQ(way.keeping.copies, 2);
}

TEST(MemoryUse, SmallParametersStayWhole) {
  auto facts = four_units();
  for (auto& unit : facts.units) unit.resident = 1 << 18;
  const auto load = load_of(0.5);
  const auto before = memory_use(four_units(), {.level = 3}, load, 0);
  const auto kept = memory_use(facts, {.level = 3}, load, 0);
  EXPECT_GT(kept.parameters, before.parameters);
  EXPECT_LE(kept.parameters, before.parameters + 4 * kMiB);
  EXPECT_DOUBLE_EQ(memory_use(facts, {.level = 2}, load, 0).model(),
                   memory_use(four_units(), {.level = 2}, load, 0).model());
}

TEST(MemoryPlan, TakesTheCheapestThatFits) {
  const auto plenty = plan_memory(two_ranks(1e9));
  ASSERT_TRUE(plenty.best);
  EXPECT_EQ(*plenty.best, 0u);
  EXPECT_THAT(memory_advice(two_ranks(1e9), plenty), HasSubstr("fits as the job file has it"));

  auto input = two_ranks(68 * kMiB);
  for (auto& rank : input.ranks) rank.load.host_is_device = false;  // whose buckets lie on it
  const auto plan = plan_memory(input);
  EXPECT_FALSE(plan.asked().fits());
  ASSERT_TRUE(plan.best);
  const auto& best = plan.ways[*plan.best];
  EXPECT_TRUE(best.fits());
  for (const auto& way : plan.ways) {
    if (!way.fits()) continue;
    EXPECT_GE(way.added_s, best.added_s * (1 - kWorthwhile));
  }
  const auto advice = memory_advice(input, plan);
  EXPECT_THAT(advice, HasSubstr("this does not fit: rank 0 lacks"));
  EXPECT_THAT(advice, HasSubstr("The cheapest that fits: zero.level="));
}

// Free memory differs a little from run to run: the verdict does not.
TEST(MemoryPlan, SaysTheSameOnBothSidesOfALimit) {
  auto input = two_ranks(1e12);
  double needed = 0;
  const auto plan = plan_memory(input);
  for (const auto& use : plan.asked().uses) needed = std::max(needed, use.model());
  const auto advice_with = [&](double room) {
    for (auto& rank : input.ranks) {
      rank.load.host_is_device = false;
      rank.room = room;
    }
    return memory_advice(input, plan_memory(input));
  };
  const auto close = advice_with(1.01 * needed);
  EXPECT_THAT(close, HasSubstr("it may fit or not"));
  EXPECT_THAT(close, HasSubstr("What fits for sure: zero.level="));
  EXPECT_EQ(advice_with(0.99 * needed), close);
  EXPECT_THAT(advice_with(0.8 * needed), HasSubstr("does not fit"));
  EXPECT_THAT(advice_with(1.2 * needed), HasSubstr("It fits as the job file has it"));
}

TEST(MemoryPlan, SaysByHowMuchAndWhatWouldHelp) {
  const auto input = two_ranks(4 * kMiB);
  const auto plan = plan_memory(input);
  EXPECT_FALSE(plan.best);
  EXPECT_THAT(memory_advice(input, plan), HasSubstr("What would help:"));
  for (const auto& way : plan.ways) EXPECT_GT(way.most_missing(), 0);
}

TEST(MemoryPlan, SmallerMicroBatchesAreProposed) {
  auto input = two_ranks(80 * kMiB);
  for (auto& rank : input.ranks) rank.load.samples = rank.load.at_once = 64;
  input.offloads = false;
  const auto plan = plan_memory(input);
  EXPECT_FALSE(plan.best);
  EXPECT_THAT(memory_advice(input, plan), HasSubstr("With train.micro_batch=1 it would fit"));
}

TEST(MemoryPlan, FreedMemoryIsKeptWhereThereIsRoom) {
  MemoryInput input;
  input.ranks.resize(2);
  for (auto& rank : input.ranks) {
    rank.facts = four_units();
    rank.load = load_of(0.5);
    rank.load.keeps_freed = true;
  }
  input.ranks[1].load.keeps_freed = false;
  const auto ample = plan_memory(input).asked().uses;
  EXPECT_DOUBLE_EQ(ample[0].kept, spare_for(ample[0].model()));
  EXPECT_DOUBLE_EQ(ample[0].peak(), ample[0].model()) << "which is in use then";
  EXPECT_EQ(ample[1].kept, 0);
  // Half of what is free, which on a host is for both; it makes no job not fit.
  const double all = ample[0].model() + ample[1].model();
  for (auto& rank : input.ranks) rank.pool = "host", rank.pool_room = all + 8 * kMiB;
  EXPECT_DOUBLE_EQ(plan_memory(input).asked().uses[0].kept, 2 * kMiB);
  for (auto& rank : input.ranks) rank.pool_room = all;
  EXPECT_TRUE(plan_memory(input).asked().fits());
  EXPECT_EQ(plan_memory(input).asked().uses[0].kept, 0);
}

TEST(MemoryPlan, WhatCannotBeShardedIsNotProposed) {
  auto input = two_ranks(60 * kMiB);
  input.shardable = false;
  for (const auto& way : plan_memory(input).ways) EXPECT_EQ(way.keeping.level, 0);
  EXPECT_THROW(plan_memory({}), Error);
}

TEST(MemoryPlan, DescribesItselfInKeys) {
  const auto changes = [](const Keeping& from, const Keeping& to) {
    const auto said = keys_of(from);
    return unsaid(keys_of(to), {said.begin(), said.end()});
  };
  const Keeping on_disk{.level = 3, .optimizer = Place::Disk, .recomputed_at_once = 1};
  EXPECT_EQ(changes({}, on_disk),
            "zero.level=3, zero.offload_optimizer=\"disk\", train.recompute=\"all\"");
  // Settings that the job has and the way has not are undone.
  EXPECT_EQ(changes(on_disk, {}),
            "zero.level=0, zero.offload_optimizer=\"none\", train.recompute=\"none\"");
  const Keeping in_backward{.level = 3, .parameters = Place::Disk, .update_in_backward = true};
  EXPECT_EQ(changes(in_backward, {.level = 3}),
            "zero.offload_parameters=\"none\", zero.update=\"step\"");
  EXPECT_EQ(changes(on_disk, on_disk), "as the job file has it");
  EXPECT_THAT(unsaid(keys_of(on_disk), {"zero.offload_path=\"\""}), HasSubstr("offload_path="));
  // "auto" recomputes where it has to; it does not go with updates in backward.
  const std::set<std::string> automatic = {"train.recompute=\"auto\""};
  EXPECT_THAT(unsaid(keys_of(Keeping{}), automatic), Not(HasSubstr("recompute")));
  EXPECT_THAT(unsaid(keys_of(Keeping{.level = 3, .update_in_backward = true}), automatic),
              HasSubstr("train.recompute=\"none\""));
  EXPECT_EQ(bytes_text(1.5 * 1024 * kMiB), "1.50 GiB");
  EXPECT_EQ(bytes_text(300 * kMiB), "300 MiB");
}

TEST(ShardsByRoom, WhatARankNeedsInAnyCaseIsTakenOffFirst) {
  auto input = two_ranks(0);
  input.asked.level = 3;
  input.ranks[0].room = 120 * kMiB;
  input.ranks[1].room = 60 * kMiB;
  const auto shards = shards_by_room(input);
  ASSERT_EQ(shards.size(), 2u);
  EXPECT_NEAR(shards[0] + shards[1], 1, 1e-12);
  EXPECT_GT(shards[0], 0.69);  // in proportion to all that they have it would be 0.667
  for (std::size_t r = 0; r < 2; ++r) input.ranks[r].load.shard = shards[r];
  const auto plan = plan_memory(input);
  const auto used = [&](std::size_t r) {
    return plan.asked().uses[r].model() / input.ranks[r].room;
  };
  EXPECT_NEAR(used(0), used(1), 0.01);
}

TEST(MemoryUse, UpdatesInBackwardHaveTheGradientsOfAFewUnits) {
  auto facts = four_units();
  for (int more = 0; more < 8; ++more) facts.units.push_back(facts.units.front());
  const auto needed = [&](bool in_backward, double at_once) {
    return memory_use(facts,
                      {.level = 3, .update_in_backward = in_backward, .recomputed_at_once = 1},
                      load_of(2.0 / 3, 4, at_once), 0);
  };
  const auto at_the_end = needed(false, 4), in_backward = needed(true, 4);
  const double unit = 2.0 / 3 * 4 * kMiB;
  EXPECT_LE(in_backward.gradients, 4 * kMiB + 3 * unit);
  EXPECT_LT(in_backward.model(), at_the_end.model() - 4 * unit);
  // If micro-batches add up, there is a shard of their gradients all the same.
  EXPECT_GE(needed(true, 1).gradients, 12 * unit);
}

TEST(MemoryPlan, WhatFitsOnlyIfUpdatedInBackwardIsUpdatedThere) {
  auto input = two_ranks(0);
  for (auto& rank : input.ranks) {
    for (int more = 0; more < 8; ++more) rank.facts.units.push_back(rank.facts.units.front());
    rank.units_at_once = 1;
    const auto least =
        memory_use(rank.facts, {.level = 3, .update_in_backward = true, .recomputed_at_once = 1},
                   rank.load, 0);
    rank.room = least.model();
  }
  input.offloads = false;
  EXPECT_FALSE(plan_memory(input).best);
  input.in_backward = true;
  const auto plan = plan_memory(input);
  ASSERT_TRUE(plan.best);
  EXPECT_EQ(plan.ways[*plan.best].keeping,
            (Keeping{.level = 3, .update_in_backward = true, .recomputed_at_once = 1}));
}

TEST(ShardsByRoom, ARankWithoutRoomKeepsNothing) {
  auto input = two_ranks(200 * kMiB);
  input.asked.level = 3;
  input.ranks[1].room = 8 * kMiB;
  EXPECT_EQ(shards_by_room(input), (std::vector<double>{1, 0}));
}

TEST(ShardsByRoom, WithCopiesARankWithoutRoomIsSparedOne) {
  auto input = two_ranks(200 * kMiB);
  input.ranks.push_back(input.ranks.back());
  input.asked = {.level = 3, .copies = 2};
  input.ranks[2].room = 8 * kMiB;
  EXPECT_EQ(shards_by_room(input), (std::vector<double>{0.5, 0.5, 0}));
}

TEST(ShardsByRoom, RanksOfOneHostShareWhatItHas) {
  auto input = two_ranks(200 * kMiB);
  input.asked.level = 2;
  for (auto& rank : input.ranks) rank.pool = "host", rank.pool_room = 100 * kMiB;
  EXPECT_EQ(shards_by_room(input), (std::vector<double>{0.5, 0.5}));
}

TEST(ShardsByRoom, NothingWhereSomethingIsNotKnown) {
  auto input = two_ranks(std::numeric_limits<double>::infinity());
  input.asked.level = 3;
  EXPECT_TRUE(shards_by_room(input).empty());
  input = two_ranks(200 * kMiB);
  EXPECT_TRUE(shards_by_room(input).empty());  // level 0
}

}  // namespace
}  // namespace bimetal::plan

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "bimetal/base/error.h"
#include "bimetal/plan/mesh/mesh_plan.h"
#include "bimetal/plan/mesh/mesh_search.h"
#include "bimetal/plan/mesh/tensor_groups.h"
#include "mesh_clusters.h"

namespace bimetal::plan {
namespace {

using ::testing::Contains;
using ::testing::DoubleEq;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::SizeIs;

constexpr LinkSpeed kInside{5e-6, 40e9};

/// Hosts with as many devices each as they have speeds.
Cluster hosts(const std::vector<std::vector<double>>& speeds, double memory,
              const LinkSpeed& inside, const LinkSpeed& uplink) {
  std::vector<MeshDevice> devices;
  Network network;
  for (std::size_t h = 0; h < speeds.size(); ++h) {
    network.hosts.push_back({"host" + std::to_string(h), inside, uplink});
    for (const double speed : speeds[h]) {
      devices.push_back({.name = std::string(1, static_cast<char>('a' + devices.size())),
                         .host = h,
                         .memory_bytes = memory,
                         .slower = 1 / speed});
    }
  }
  return {devices, network};
}

TransformerSizes small() {
  return {.layers = 12, .width = 768, .context = 512, .vocabulary = 8192};
}

/// The bytes of a device for all that belongs to a model's parameters.
double whole_bytes(const ModelFacts& facts) {
  return 16 * static_cast<double>(facts.elements());
}

const MeshChoice* in_parts(const std::vector<MeshChoice>& choices, std::size_t stages = 1) {
  const auto found = std::ranges::find_if(choices, [&](const MeshChoice& choice) {
    return choice.most_parts() > 1 && choice.stages.size() == stages;
  });
  return found == choices.end() ? nullptr : &*found;
}

/// 3 heads with 60 elements, 10 columns with 100, 8 elements that are whole.
UnitFacts unit_of_heads() {
  return {.name = "unit",
          .parameters = 168,
          .output = {0, 10},
          .saved = {0, 100},
          .forward_s = {0, 1},
          .backward_s = {0, 2},
          .in_parts = {.splits = {{3, 60, 60, 0}, {10, 100, 100, 0}},
                       .saved = 0.4,
                       .forward_s = 0.1,
                       .backward_s = 0}};
}

TEST(TensorParts, WholePiecesAreDealtOutByWeight) {
  ModelFacts facts;
  facts.units = {unit_of_heads()};
  EXPECT_EQ(most_tensor_ranks(facts), 3);
  const std::vector<double> weights = {2, 1};
  const auto first = facts_in_parts(facts, weights, 0).units[0];
  const auto second = facts_in_parts(facts, weights, 1).units[0];
  // 2 of 3 heads, 7 of 10 columns.
  EXPECT_EQ(first.parameters, 8 + 40 + 70);
  EXPECT_EQ(second.parameters, 8 + 20 + 30);
  const double part = (40.0 + 70) / 160;
  EXPECT_THAT(first.forward_s.per_sample, DoubleEq(0.1 + 0.9 * part));
  EXPECT_THAT(first.backward_s.per_sample, DoubleEq(2 * part));
  EXPECT_THAT(first.saved.per_sample, DoubleEq(40 + 60 * part));
  EXPECT_THAT(second.saved.per_sample, DoubleEq(40 + 60 * (1 - part)));
  EXPECT_EQ(first.output.per_sample, 10) << "what flows between units is whole";
  const std::vector<double> four = {1, 1, 1, 1};
  EXPECT_THROW(facts_in_parts(facts, four, 0), Error);
}

TEST(TensorParts, WhatNobodySaysHowToCutIsWhole) {
  ModelFacts facts = unequal_units();
  EXPECT_EQ(most_tensor_ranks(facts), 1);
  const auto plan = plan_mesh({input_of(facts, 8), apart({1, 1}, {kGiB, kGiB}, kFastLink)});
  EXPECT_EQ(in_parts(plan.best), nullptr);
}

// The step of a block that is cut in two: half of its products on each, and four sums.
TEST(TensorPlan, AStepIsWhatThePartsComputeAndTheSums) {
  auto facts = transformer_facts(small());
  facts.units = {facts.units[1], facts.units[2]};
  const auto input = input_of(facts, 4);
  const auto cluster = hosts({{1, 1}}, 64 * kGiB, kInside, kGigabitLink);
  const TensorGroups groups({input, cluster}, with_weights(Groups{{0, 1}}, {1, 1}));
  const auto choice = choose_data(groups.problem(), {0}, {});
  ASSERT_TRUE(choice);
  const auto whole = choose_data({input, cluster}, {0}, {});
  const std::vector<int> both = {0, 1};
  const double tokens = 512 * 768 * 4;
  const double sums = 2 * 4 * cluster.all_reduce_seconds(both, 4 * tokens);
  EXPECT_NEAR(choice->step_s, whole->step_s / 2 + sums, 1e-9);
  const auto expanded = groups.expanded(*choice);
  EXPECT_NEAR(expanded.summed_s, sums, 1e-12);
  EXPECT_EQ(expanded.scheme, Scheme::Tensor);
  EXPECT_THAT(expanded.peak_bytes, SizeIs(2));
  EXPECT_LT(expanded.peak_bytes[0], whole->peak_bytes[0]);
  EXPECT_GT(expanded.peak_bytes[0], whole->peak_bytes[0] / 2);
}

// One sample: a pipeline has nothing to overlap, and shares have nothing to share.
TEST(TensorPlan, TwoDevicesOfAHostShareWhatIsTooLargeForOneAndHasFewSamples) {
  const auto model = transformer_facts(small());
  const auto cluster = hosts({{1, 1}}, 0.8 * whole_bytes(model), kInside, kGigabitLink);
  const auto plan = plan_mesh({input_of(model, 1), cluster});
  ASSERT_FALSE(plan.best.empty());
  const auto& best = plan.best.front();
  EXPECT_EQ(best.scheme, Scheme::Tensor);
  EXPECT_EQ(best.most_parts(), 2u);
  EXPECT_THAT(keys_of(best), HasSubstr("mesh.tensor=2, mesh.tensor_weights=[1, 1]"));
  EXPECT_THAT(describe(cluster, best), HasSubstr("tensors in parts on 2"));
  for (const double peak : best.peak_bytes) EXPECT_LE(peak, 0.8 * whole_bytes(model));
  EXPECT_THAT(mesh_advice(cluster, plan), HasSubstr("a + b (1 samples)"));
}

TEST(TensorPlan, ASlowLinkSpeaksAgainstItAndIsNamed) {
  const auto model = transformer_facts(small());
  const auto cluster = hosts({{1}, {1}}, 64 * kGiB, kInside, {200e-6, 112.5e6});
  const auto plan = plan_mesh({input_of(model, 8), cluster});
  const auto* const parts = in_parts(plan.best);
  ASSERT_NE(parts, nullptr) << "it is said what speaks against it";
  EXPECT_NE(parts, &plan.best.front());
  EXPECT_THAT(parts->reason, HasSubstr("sums of activations take"));
  EXPECT_THAT(parts->reason, HasSubstr("0.9 Gbit/s"));
  EXPECT_GT(parts->summed_s, 0.1 * parts->step_s);
}

// Parts by speed would leave the slow device, which has the memory, almost empty.
TEST(TensorPlan, PartsFollowMemoryWhereSpeedDoesNotFit) {
  const auto model = transformer_facts(small());
  const double whole = whole_bytes(model);
  const auto cluster = apart({4, 1}, {0.55 * whole, 1.1 * whole}, kInside);
  const auto plan = plan_mesh({input_of(model, 1), cluster});
  const auto* const parts = in_parts(plan.best);
  ASSERT_NE(parts, nullptr);
  EXPECT_THAT(parts->stages[0].part_weights, ElementsAre(1, 2));
}

TEST(TensorPlan, StagesGoBetweenHostsAndPartsIntoThem) {
  const auto model = transformer_facts(small());
  const auto cluster = hosts({{1, 1}, {1, 1}}, 0.45 * whole_bytes(model), kInside, kGigabitLink);
  const auto plan = plan_mesh({input_of(model, 2), cluster});
  const auto* const both = in_parts(plan.best, 2);
  ASSERT_NE(both, nullptr);
  for (const auto& stage : both->stages) {
    ASSERT_THAT(stage.devices, SizeIs(2));
    EXPECT_TRUE(cluster.same_host(stage.devices[0], stage.devices[1]));
  }
  EXPECT_THAT(keys_of(*both), HasSubstr("mesh.stages=2"));
  EXPECT_THAT(keys_of(*both), HasSubstr("mesh.tensor=2"));
  const auto run = run_of({input_of(model, 2), cluster}, *both);
  EXPECT_THAT(run.stages, SizeIs(2));
}

TEST(Groupings, AreOfEachHostAndOfAFewDevicesAll) {
  const auto few = hosts({{1, 1}, {1, 1}}, kGiB, kInside, kGigabitLink);
  // Six pairs, and three ways to have two of them.
  EXPECT_THAT(groupings_of(few, {0, 1, 2, 3}, 2), SizeIs(9));
  EXPECT_THAT(groupings_of(few, {0, 1, 2, 3}, 3), SizeIs(4));
  const auto more = hosts({{1, 1, 1}, {1, 1, 1}}, kGiB, kInside, kGigabitLink);
  EXPECT_THAT(groupings_of(more, {0, 1, 2, 3, 4, 5}, 2),
              Contains(ElementsAre(ElementsAre(0, 1), ElementsAre(3, 4))));
}

// All devices in their order.
TEST(StagesChoice, TensorsMayBeInPartsToo) {
  const auto model = transformer_facts(small());
  const auto input = input_of(model, 1);
  const auto cluster = hosts({{1, 1}}, 0.8 * whole_bytes(model), kInside, kGigabitLink);
  const auto open = choose_stages({input, cluster}, {.tensor = 0, .parts_by_speed = true});
  ASSERT_FALSE(open.empty());
  EXPECT_EQ(open.front().scheme, Scheme::Tensor);
  EXPECT_THAT(open.front().stages[0].devices, ElementsAre(0, 1));
  for (const auto& choice : choose_stages({input, cluster}, {})) EXPECT_EQ(choice.most_parts(), 1u);
  for (const auto& choice : choose_stages({input, cluster}, {.stages = 2, .tensor = 0})) {
    EXPECT_EQ(choice.stages.size(), 2u);
  }
  const auto stated = choose_stages({input, cluster}, {.tensor = 2, .tensor_weights = {3, 1}});
  ASSERT_THAT(stated, SizeIs(1));
  EXPECT_THAT(stated[0].stages[0].part_weights, ElementsAre(3, 1));
  EXPECT_THAT(choose_stages({input, cluster}, {.tensor = 3}), SizeIs(0));
  // By speed, and by memory, where the first does not fit.
  const auto tight = hosts({{1, 3}}, 0.1 * whole_bytes(model), kInside, kGigabitLink);
  const StagesWish by_speed{.stages = 1, .tensor = 2, .parts_by_speed = true};
  EXPECT_THAT(choose_stages({input, tight}, by_speed), SizeIs(2));
}

// All that a block computes is dealt out.
TEST(TensorPlan, OperationsArePartsOfTheWhole) {
  const auto whole = transformer_facts({.layers = 1, .width = 512, .context = 64});
  const std::vector<double> weights = {3, 1};
  const auto large = facts_in_parts(whole, weights, 0), small = facts_in_parts(whole, weights, 1);
  const auto operations = [](const ModelFacts& facts) { return facts.units[1].operations; };
  EXPECT_GT(operations(whole), 24.0 * 64 * 512 * 512);
  EXPECT_DOUBLE_EQ(operations(large), 0.75 * operations(whole));
  EXPECT_DOUBLE_EQ(operations(large) + operations(small), operations(whole));
}

}  // namespace
}  // namespace bimetal::plan

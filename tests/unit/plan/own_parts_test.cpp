// Stages whose tensors are in parts of their own number: one whole, say, and one in two parts.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "bimetal/plan/mesh/layouts.h"
#include "bimetal/plan/mesh/mesh_advice.h"
#include "bimetal/plan/mesh/pipeline_costs.h"
#include "bimetal/plan/mesh/stages_choice.h"
#include "bimetal/plan/mesh/tensor_groups.h"
#include "mesh_clusters.h"

namespace bimetal::plan {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

ModelFacts model() {
  return transformer_facts({.layers = 12, .width = 768, .context = 512, .vocabulary = 8192});
}

/// Of a device, for all that belongs to a model's parameters.
double whole_bytes() {
  return 16 * static_cast<double>(model().elements());
}

const std::vector<double> kPlenty(3, 64 * kGiB);
constexpr LinkSpeed kTenGigabits{50e-6, 1.25e9};

/// A host with one device, and one with two.
Cluster one_and_two(const std::vector<double>& speeds, const std::vector<double>& memory,
                    const LinkSpeed& link = kTenGigabits) {
  std::vector<MeshDevice> devices;
  for (std::size_t d = 0; d < 3; ++d) {
    devices.push_back({.name = std::string(1, static_cast<char>('a' + d)),
                       .host = d == 0 ? 0u : 1u,
                       .memory_bytes = memory[d],
                       .slower = 1 / speeds[d]});
  }
  return {devices, {.hosts = {{"mac", kFastLink, link}, {"pc", kFastLink, link}}}};
}

std::vector<TensorGroup> whole_and_parts() {
  return {{{0}, {1}}, {{1, 2}, {1, 1}}};
}

TEST(OwnParts, AGroupTalksToOneDeviceByAsManyMessagesAsAreAwaited) {
  const auto input = input_of(model(), 8);
  const auto cluster = one_and_two({1, 1, 1}, kPlenty);
  const TensorGroups groups(input, cluster, whole_and_parts());
  // Activations go to both parts over one link, their gradient comes from one of them.
  EXPECT_DOUBLE_EQ(groups.cluster().link(0, 1).bytes_per_s, kTenGigabits.bytes_per_s / 2);
  EXPECT_DOUBLE_EQ(groups.cluster().link(1, 0).bytes_per_s, kTenGigabits.bytes_per_s);
}

// By hand: what the stages' units take on their devices, half of them in the second stage and the
// sums there, and the ways between.
TEST(OwnParts, AStepIsTheTwoStagesPassesSumsAndSends) {
  const auto input = input_of(model(), 8);
  const auto cluster = one_and_two({1, 1, 1}, kPlenty);
  const auto choice =
      choose_stages(
          input, cluster,
          {.stages = 2, .replicas = 1, .cuts = {5}, .stage_tensor = {1, 2}, .micro_batches = 4})
          .at(0);
  const double at_once = 2;
  const auto of = [&](std::size_t begin, std::size_t end) {
    return passes_of(input, cluster, 0, UnitRange{begin, end}, at_once, false);
  };
  const auto units = input.facts[0].units.size();
  const auto first = of(0, 5), second = of(5, units);
  const std::vector<int> pair = {1, 2};
  double sums_forward = 0, sums_backward = 0;
  for (std::size_t u = 5; u < units; ++u) {
    const auto& parts = input.facts[0].units[u].in_parts;
    const auto seconds = [&](double count, const Linear& bytes) {
      return count * cluster.all_reduce_seconds(pair, 0) +
             cluster.all_reduce_seconds(pair, bytes.at(at_once)) -
             cluster.all_reduce_seconds(pair, 0);
    };
    sums_forward += seconds(parts.forward_sums, parts.forward_summed_bytes);
    sums_backward += seconds(parts.backward_sums, parts.backward_summed_bytes);
  }
  const double whole = input.facts[0].units[4].output.at(at_once);
  const double there = kTenGigabits.latency_s + 2 * whole / kTenGigabits.bytes_per_s;
  const double back = kTenGigabits.latency_s + whole / kTenGigabits.bytes_per_s;
  const std::vector<parallel::schedule::PieceCost> costs = {
      {.forward = first.forward,
       .backward_input = first.backward / 2,
       .backward_weight = first.backward / 2,
       .send_forward = there},
      {.forward = second.forward / 2 + sums_forward,
       .backward_input = (second.backward / 2 + sums_backward) / 2,
       .backward_weight = (second.backward / 2 + sums_backward) / 2,
       .send_backward = back}};
  const auto run = parallel::schedule::simulate(
      parallel::schedule::schedules(choice.schedule, {.stages = 2, .micro_batches = 4}), costs);
  const double end = std::max(run.stages[0].back().end, run.stages[1].back().end);
  EXPECT_NEAR(choice.step_s, end + choice.sent_s, 0.01 * end) << "but for the optimizer";
  // All of the tensor that the first and the last unit share.
  EXPECT_GE(choice.sent_s, 4.0 * 8192 * 768 / kTenGigabits.bytes_per_s);
  EXPECT_THAT(choice.replicas(), ElementsAre(1, 1));
  EXPECT_THAT(choice.parts(), ElementsAre(1, 2));
  EXPECT_TRUE(choice.even) << "one pipeline";
  EXPECT_THAT(choice.peak_bytes, SizeIs(3));
  EXPECT_NEAR(choice.peak_bytes[1], choice.peak_bytes[2], 1);
  EXPECT_THAT(keys_of(choice), HasSubstr("mesh.tensor=[1, 2], mesh.tensor_weights=[1, 1]"));
  EXPECT_THAT(describe(cluster, choice), HasSubstr("tensors in parts on 1 + 2"));
  EXPECT_THAT(run_of(input, cluster, choice).stages, SizeIs(2));
}

// What the embedding and the head share is summed whole, however large a part each has of it.
TEST(OwnParts, WhatStagesShareIsWholeWhateverThePartsAre) {
  const auto input = input_of(model(), 8);
  const auto cluster = one_and_two({1, 1, 1}, kPlenty);
  const auto sent = [&](const std::vector<double>& weights) {
    const StagesWish wish{
        .stages = 2, .stage_tensor = {1, 2}, .tensor_weights = weights, .micro_batches = 4};
    return choose_stages(input, cluster, wish).at(0).sent_s;
  };
  EXPECT_DOUBLE_EQ(sent({1, 1}), sent({5, 1}));
  const Cluster turned({cluster.device(1), cluster.device(2), cluster.device(0)},
                       cluster.network());
  const StagesWish wish{
      .stages = 2, .stage_tensor = {2, 1}, .tensor_weights = {5, 1}, .micro_batches = 4};
  EXPECT_DOUBLE_EQ(choose_stages(input, turned, wish).at(0).sent_s, sent({1, 1}));
}

// Two replicas of each stage: all six devices are one pipeline, whose micro-batches are dealt.
TEST(OwnParts, ReplicasShareThePipelinesMicroBatches) {
  const auto input = input_of(model(), 16);
  std::vector<MeshDevice> devices;
  for (int d = 0; d < 6; ++d) {
    devices.push_back({.name = std::string(1, static_cast<char>('a' + d)),
                       .memory_bytes = 64 * kGiB,
                       .slower = d == 0 ? 1.0 / 3 : 1.0});
  }
  const Cluster cluster(devices, {.hosts = {{"host", kFastLink, kGigabitLink}}});
  StagesWish wish{.stages = 2, .replicas = 2, .stage_tensor = {1, 2}, .micro_batches = 8};
  const auto alike = choose_stages(input, cluster, wish).at(0);
  EXPECT_FALSE(alike.even);
  EXPECT_THAT(alike.stages[0].samples, ElementsAre(12, 4)) << "one is three times as fast";
  EXPECT_THAT(alike.stages[1].samples, ElementsAre(8, 8));
  EXPECT_THAT(keys_of(alike), HasSubstr("mesh.replicas=2"));
  EXPECT_THAT(run_of(input, cluster, alike).stages, SizeIs(4));
  EXPECT_GT(alike.summed_s, 0);
  wish.replicas = 0;
  wish.stage_replicas = {2, 2};
  EXPECT_EQ(choose_stages(input, cluster, wish).at(0).step_s, alike.step_s);
  // Replicas of their own number, of as many parts each.
  const StagesWish own{.stages = 2, .stage_replicas = {1, 2}, .tensor = 2, .micro_batches = 8};
  const auto uneven = choose_stages(input, cluster, own).at(0);
  EXPECT_FALSE(uneven.even);
  EXPECT_THAT(uneven.replicas(), ElementsAre(1, 2));
  EXPECT_THAT(uneven.parts(), ElementsAre(2, 2));
  EXPECT_THAT(uneven.peak_bytes, SizeIs(6));
  EXPECT_THAT(keys_of(uneven), HasSubstr("mesh.replicas=[1, 2]"));
}

TEST(OwnParts, WeightsAreForStagesWithAsMany) {
  const auto input = input_of(model(), 8);
  const auto cluster = one_and_two({1, 2, 1}, kPlenty);
  StagesWish wish{.stages = 2, .stage_tensor = {1, 2}, .tensor_weights = {3, 1}};
  EXPECT_THAT(choose_stages(input, cluster, wish).at(0).stages[1].part_weights, ElementsAre(3, 1));
  wish.tensor_weights = {1, 1, 1};
  EXPECT_THAT(choose_stages(input, cluster, wish), IsEmpty());
  wish.tensor_weights = {};
  wish.parts_by_speed = true;
  EXPECT_THAT(choose_stages(input, cluster, wish).at(0).stages[1].part_weights, ElementsAre(2, 1));
}

const StagesWish kOpen{.tensor = 0,
                       .parts_by_speed = true,
                       .any_schedule = true,
                       .any_micro_batches = true,
                       .keeping = {.recomputed_at_once = 1}};

/// Room for two thirds of the model on the first device, and for a third on each of the others.
std::vector<double> unlike_memory() {
  return {0.66 * whole_bytes(), 0.33 * whole_bytes(), 0.33 * whole_bytes()};
}

// A device as fast as two others that have half of its memory each, and too few samples to keep
// three stages busy.
TEST(OwnParts, ADeviceAloneAndTwoThatShareAreFound) {
  const auto input = input_of(model(), 2);
  const auto cluster = one_and_two({2, 1, 1}, unlike_memory());
  const auto plan = plan_mesh(input, cluster);
  ASSERT_THAT(plan.best, ::testing::Not(IsEmpty()));
  EXPECT_THAT(plan.best.front().parts(), ElementsAre(1, 2)) << describe(cluster, plan.best.front());
  EXPECT_THAT(plan.best.front().stages[1].devices, ElementsAre(1, 2));
  const auto chosen = choose_stages(input, cluster, kOpen).at(0);
  EXPECT_THAT(chosen.parts(), ElementsAre(1, 2));
  EXPECT_TRUE(chosen.fits());
  EXPECT_NEAR(chosen.step_s, plan.best.front().step_s, 0.02 * chosen.step_s);
  auto without = kOpen;
  without.own_parts = false;
  const auto other = choose_stages(input, cluster, without).at(0);
  EXPECT_TRUE(!other.fits() || other.step_s > 1.05 * chosen.step_s) << describe(cluster, other);
  auto refused = input;
  refused.own_parts = false;
  const auto less = plan_mesh(refused, cluster);
  EXPECT_TRUE(less.best.empty() || less.best[0].step_s > 1.05 * plan.best[0].step_s);
}

// Whatever is stated of these is no faster than what is found.
TEST(OwnParts, WhatIsFoundIsTheFastestOfAllThatCouldBeStated) {
  const auto input = input_of(model(), 4);
  int compared = 0;
  for (const auto& speeds : std::vector<std::vector<double>>{{2, 1, 1}, {1, 1, 1}, {1, 4, 3}}) {
    const auto cluster = one_and_two(speeds, unlike_memory());
    const auto found = choose_stages(input, cluster, kOpen).at(0);
    EXPECT_TRUE(found.fits());
    for (const auto& parts : std::vector<std::vector<std::size_t>>{{1, 2}, {2, 1}}) {
      auto stated = kOpen;
      stated.stages = 2;
      stated.stage_tensor = parts;
      for (const auto& choice : choose_stages(input, cluster, stated)) {
        compared += choice.fits();
        EXPECT_TRUE(!choice.fits() || found.step_s <= 1.05 * choice.step_s);
      }
    }
  }
  EXPECT_GE(compared, 2);
}

TEST(OwnParts, GroupsBesideWholeDevicesAreOfOneHostAndOnceEach) {
  const auto cluster = one_and_two({1, 1, 1}, {kGiB, kGiB, kGiB});
  const auto found = groupings_beside(cluster, {0, 1, 2}, 2);
  ASSERT_THAT(found, SizeIs(1));
  EXPECT_THAT(found[0].groups, ElementsAre(ElementsAre(1, 2)));
  EXPECT_THAT(found[0].whole, ElementsAre(0));
  EXPECT_THAT(groupings_beside(cluster, {0, 1, 2}, 3), IsEmpty());
  // Of six alike ones on two hosts, pairs of both hosts, or of one of them, which are alike.
  std::vector<MeshDevice> devices;
  for (std::size_t d = 0; d < 6; ++d) {
    devices.push_back({.name = "x", .host = d / 3, .memory_bytes = kGiB});
  }
  const Cluster six(devices,
                    {.hosts = {{"a", kFastLink, kGigabitLink}, {"b", kFastLink, kGigabitLink}}});
  EXPECT_THAT(groupings_beside(six, {0, 1, 2, 3, 4, 5}, 2), SizeIs(2));
  // Of one host, of which pairs would leave nobody: two of the three.
  const Cluster one(std::vector<MeshDevice>(6, {.name = "x", .memory_bytes = kGiB}),
                    {.hosts = {{"a", kFastLink, kGigabitLink}}});
  const auto pairs = groupings_beside(one, {0, 1, 2, 3, 4, 5}, 2);
  ASSERT_THAT(pairs, SizeIs(1));
  EXPECT_THAT(pairs[0].groups, SizeIs(2));
  EXPECT_THAT(pairs[0].whole, ElementsAre(4, 5));
}

// Six devices of unlike hosts.
TEST(OwnParts, MoreDevicesThanAreSearchedThroughHaveThemToo) {
  const auto input = input_of(model(), 2);
  std::vector<MeshDevice> devices;
  for (std::size_t d = 0; d < 6; ++d) {
    devices.push_back({.name = std::string(1, static_cast<char>('a' + d)),
                       .host = d < 4 ? 0u : d - 3,
                       .memory_bytes = 0.2 * whole_bytes(),
                       .slower = d < 4 ? 1.0 : 0.5});
  }
  const Cluster cluster(devices, {.hosts = {{"cards", kFastLink, kTenGigabits},
                                            {"one", kFastLink, kTenGigabits},
                                            {"two", kFastLink, kTenGigabits}}});
  auto plan = plan_mesh(input, cluster);
  std::ranges::move(plan.others, std::back_inserter(plan.best));
  EXPECT_THAT(plan.best, ::testing::Contains(::testing::Truly([](const MeshChoice& choice) {
                return choice.parts().size() > 1 && choice.most_parts() == 2 &&
                       std::ranges::min(choice.parts()) == 1;
              })));
}

}  // namespace
}  // namespace bimetal::plan

// Stages whose tensors are in parts of their own number: one whole, say, and one in two parts.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "bimetal/plan/mesh/mesh_plan.h"
#include "bimetal/plan/mesh/mesh_search.h"
#include "bimetal/plan/mesh/pipeline_costs.h"
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

/// The bytes of a device for all that belongs to a model's parameters.
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
  const TensorGroups groups({input, cluster}, whole_and_parts());
  // Activations go to both parts over one link, their gradient comes from one of them.
  EXPECT_DOUBLE_EQ(groups.problem().cluster.link(0, 1).bytes_per_s, kTenGigabits.bytes_per_s / 2);
  EXPECT_DOUBLE_EQ(groups.problem().cluster.link(1, 0).bytes_per_s, kTenGigabits.bytes_per_s);
}

// That a step is the passes, the sums and the sends of its stages: tensor_plan_test.cpp.
TEST(OwnParts, AChoiceTellsThePartsOfEachStage) {
  const auto input = input_of(model(), 8);
  const auto cluster = one_and_two({1, 1, 1}, kPlenty);
  const auto choice =
      choose_stages(
          {input, cluster},
          {.stages = 2, .replicas = 1, .cuts = {5}, .stage_tensor = {1, 2}, .micro_batches = 4})
          .at(0);
  // All of the tensor that the first and the last unit share.
  EXPECT_GE(choice.sent_s, 4.0 * 8192 * 768 / kTenGigabits.bytes_per_s);
  EXPECT_THAT(choice.replicas(), ElementsAre(1, 1));
  EXPECT_THAT(choice.parts(), ElementsAre(1, 2));
  EXPECT_TRUE(choice.even) << "one pipeline";
  EXPECT_THAT(choice.peak_bytes, SizeIs(3));
  EXPECT_NEAR(choice.peak_bytes[1], choice.peak_bytes[2], 1);
  EXPECT_THAT(keys_of(choice), HasSubstr("mesh.tensor=[1, 2], mesh.tensor_weights=[1, 1]"));
  EXPECT_THAT(describe(cluster, choice), HasSubstr("tensors in parts on 1 + 2"));
  EXPECT_THAT(run_of({input, cluster}, choice).stages, SizeIs(2));
}

// The tensor that the embedding and the head share is summed whole, however large each one's part
// of it is.
TEST(OwnParts, WhatStagesShareIsWholeWhateverThePartsAre) {
  const auto input = input_of(model(), 8);
  const auto cluster = one_and_two({1, 1, 1}, kPlenty);
  const auto sent = [&](const std::vector<double>& weights) {
    const StagesWish wish{
        .stages = 2, .stage_tensor = {1, 2}, .tensor_weights = weights, .micro_batches = 4};
    return choose_stages({input, cluster}, wish).at(0).sent_s;
  };
  EXPECT_DOUBLE_EQ(sent({1, 1}), sent({5, 1}));
  const Cluster turned({cluster.device(1), cluster.device(2), cluster.device(0)},
                       cluster.network());
  const StagesWish wish{
      .stages = 2, .stage_tensor = {2, 1}, .tensor_weights = {5, 1}, .micro_batches = 4};
  EXPECT_DOUBLE_EQ(choose_stages({input, turned}, wish).at(0).sent_s, sent({1, 1}));
}

TEST(OwnParts, WeightsAreForStagesWithAsMany) {
  const auto input = input_of(model(), 8);
  const auto cluster = one_and_two({1, 2, 1}, kPlenty);
  StagesWish wish{.stages = 2, .stage_tensor = {1, 2}, .tensor_weights = {3, 1}};
  EXPECT_THAT(choose_stages({input, cluster}, wish).at(0).stages[1].part_weights,
              ElementsAre(3, 1));
  wish.tensor_weights = {1, 1, 1};
  EXPECT_THAT(choose_stages({input, cluster}, wish), IsEmpty());
  wish.tensor_weights = {};
  wish.parts_by_speed = true;
  EXPECT_THAT(choose_stages({input, cluster}, wish).at(0).stages[1].part_weights,
              ElementsAre(2, 1));
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

// No stated parts are faster than the ones found.
TEST(OwnParts, WhatIsFoundIsTheFastestOfAllThatCouldBeStated) {
  const auto input = input_of(model(), 4);
  int compared = 0;
  for (const auto& speeds : std::vector<std::vector<double>>{{2, 1, 1}, {1, 1, 1}, {1, 4, 3}}) {
    const auto cluster = one_and_two(speeds, unlike_memory());
    const auto found = choose_stages({input, cluster}, kOpen).at(0);
    EXPECT_TRUE(found.fits());
    for (const auto& parts : std::vector<std::vector<std::size_t>>{{1, 2}, {2, 1}}) {
      auto stated = kOpen;
      stated.stages = 2;
      stated.stage_tensor = parts;
      for (const auto& choice : choose_stages({input, cluster}, stated)) {
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
  // Six equal devices on two hosts: pairs of both hosts, or of one of them, which are alike.
  std::vector<MeshDevice> devices;
  for (std::size_t d = 0; d < 6; ++d) {
    devices.push_back({.name = "x", .host = d / 3, .memory_bytes = kGiB});
  }
  const Cluster six(devices,
                    {.hosts = {{"a", kFastLink, kGigabitLink}, {"b", kFastLink, kGigabitLink}}});
  EXPECT_THAT(groupings_beside(six, {0, 1, 2, 3, 4, 5}, 2), SizeIs(2));
  // One host whose pairs would leave no device over: two of the three pairs.
  const Cluster one(std::vector<MeshDevice>(6, {.name = "x", .memory_bytes = kGiB}),
                    {.hosts = {{"a", kFastLink, kGigabitLink}}});
  const auto pairs = groupings_beside(one, {0, 1, 2, 3, 4, 5}, 2);
  ASSERT_THAT(pairs, SizeIs(1));
  EXPECT_THAT(pairs[0].groups, SizeIs(2));
  EXPECT_THAT(pairs[0].whole, ElementsAre(4, 5));
}

}  // namespace
}  // namespace bimetal::plan

#include "bimetal/plan/mesh/stages_choice.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "mesh_clusters.h"

namespace bimetal::plan {
namespace {

constexpr double kPlenty = 64 * kGiB;

std::vector<std::size_t> stage_counts(const std::vector<MeshChoice>& choices) {
  std::vector<std::size_t> counts;
  for (const auto& choice : choices) counts.push_back(choice.stages.size());
  return counts;
}

TEST(StagesChoice, FastLinksSpeakForSharesAndSlowOnesForStages) {
  const auto input = input_of(transformer_facts({.layers = 24, .width = 1024, .context = 512}), 16);
  const std::vector<double> speeds = {1, 1, 1, 1}, memory(4, kPlenty);
  const auto fast = choose_stages(input, apart(speeds, memory, {5e-6, 50e9}), {});
  EXPECT_THAT(stage_counts(fast), ::testing::ElementsAre(1, 2, 3, 4));
  const auto slow = choose_stages(input, apart(speeds, memory, kGigabitLink), {});
  EXPECT_GT(slow.front().stages.size(), 1u);
  EXPECT_LT(slow.front().step_s, fast.front().step_s * 100);
  for (const auto& choice : slow) EXPECT_EQ(choice.devices(), 4) << "all take part";
}

TEST(StagesChoice, EveryoneIsInTheirOrder) {
  const auto choices = choose_stages(input_of(unequal_units(), 12),
                                     apart({1, 3, 1, 1}, std::vector(4, kPlenty), kFastLink), {});
  for (const auto& choice : choices) {
    if (choice.scheme != Scheme::Pipeline) continue;
    int next = 0;
    std::size_t unit = 0;
    for (const auto& stage : choice.stages) {
      EXPECT_EQ(stage.pieces.at(0).begin, unit);
      unit = stage.pieces[0].end;
      for (const int device : stage.devices) EXPECT_EQ(device, next++);
    }
    EXPECT_EQ(unit, 7u);
  }
}

TEST(StagesChoice, WhatFitsOnNobodyIsCut) {
  const auto model =
      transformer_facts({.layers = 12, .width = 768, .context = 512, .vocabulary = 8192});
  const double whole = 16 * static_cast<double>(model.elements());
  const auto cluster = apart({2, 1}, {0.98 * whole, 0.9 * whole}, kFastLink);
  const auto choices = choose_stages(input_of(model, 16), cluster, {});
  ASSERT_EQ(choices.size(), 2u);
  EXPECT_EQ(choices[0].stages.size(), 2u);
  EXPECT_TRUE(choices[0].fits());
  EXPECT_FALSE(choices[1].fits());
}

TEST(StagesChoice, ASlowReplicaMakesMicroBatchesFewer) {
  const auto choices =
      choose_stages(input_of(unequal_units(), 16),
                    apart({3, 1, 3, 1}, std::vector(4, kPlenty), kFastLink), {.stages = 2});
  const auto box = std::ranges::find_if(choices, [](const auto& c) { return c.even; });
  ASSERT_NE(box, choices.end());
  EXPECT_THAT(box->stages[0].samples, ::testing::ElementsAre(12, 4));
  EXPECT_LE(box->micro_batches, 4);
}

TEST(StagesChoice, WhatIsStatedWins) {
  const auto input = input_of(unequal_units(), 12);
  const auto cluster = apart({1, 1, 1, 1}, std::vector(4, kPlenty), kGigabitLink);
  EXPECT_THAT(stage_counts(choose_stages(input, cluster, {.replicas = 2})),
              ::testing::ElementsAre(2));
  EXPECT_THAT(stage_counts(choose_stages(input, cluster, {.replicas = 4})),
              ::testing::ElementsAre(1));
  EXPECT_THAT(stage_counts(choose_stages(input, cluster, {.replicas = 3})), ::testing::IsEmpty());
  EXPECT_THAT(stage_counts(choose_stages(input, cluster, {.pipelines = false})),
              ::testing::ElementsAre(1));
  const auto stated = choose_stages(
      input, cluster,
      {.replicas = 1, .schedule = parallel::schedule::Kind::gpipe, .micro_batches = 3});
  ASSERT_EQ(stated.size(), 1u);
  EXPECT_EQ(stated[0].micro_batches, 3);
  EXPECT_EQ(stated[0].schedule, parallel::schedule::Kind::gpipe);
}

// Stages, and parts, but not both.
TEST(StagesChoice, StagesMayBeForWholeTensorsAlone) {
  const auto input = input_of(transformer_facts({.layers = 4, .width = 768, .context = 512}), 16);
  const auto cluster = apart({1, 1, 1, 1}, std::vector(4, kPlenty), kFastLink);
  const auto most_stages = [&](bool in_parts, bool both) {
    std::size_t most = 0;
    for (const auto& choice :
         choose_stages(input, cluster, {.tensor = 0, .pipelines_in_parts = both})) {
      if ((choice.most_parts() > 1) == in_parts) most = std::max(most, choice.stages.size());
    }
    return most;
  };
  EXPECT_EQ(most_stages(true, true), 2u);
  EXPECT_EQ(most_stages(true, false), 1u);
  EXPECT_EQ(most_stages(false, false), 4u);
}

std::vector<std::size_t> replica_counts(const MeshChoice& choice) {
  std::vector<std::size_t> counts;
  for (const auto& stage : choice.stages) counts.push_back(stage.devices.size());
  return counts;
}

// A device as fast as two others together, on slow links: each is to do half of the work.
TEST(StagesChoice, StagesMayHaveReplicasOfTheirOwnNumber) {
  const auto input = input_of(transformer_facts({.layers = 12, .width = 768, .context = 512}), 32);
  const auto cluster = apart({2, 1, 1}, std::vector(3, kPlenty), {1e-4, 0.4e9});
  const auto choices = choose_stages(input, cluster, {});
  const auto two = std::ranges::find(choices, 2u, [](const auto& c) { return c.stages.size(); });
  ASSERT_NE(two, choices.end());
  EXPECT_EQ(replica_counts(*two), (std::vector<std::size_t>{1, 2}));
  EXPECT_NEAR(two->stages[1].samples[0], 16, 3);
  const auto even = choose_stages(input, cluster, {.uneven = false});
  EXPECT_THAT(stage_counts(even), ::testing::ElementsAre(1, 3));
}

// Of seven devices in two to seven stages there are 63 layouts, most of which get no more than a
// glance.
TEST(StagesChoice, WhatGetsNoMoreThanAGlanceIsNotMuchBetter) {
  const auto input = input_of(transformer_facts({.layers = 12, .width = 512, .context = 256}), 64);
  const auto cluster = apart({4, 1, 2, 2, 1, 3, 1}, std::vector(7, kPlenty), kFastLink);
  StagesWish open{.any_schedule = true, .any_micro_batches = true};
  for (const int stages : {2, 3, 4}) {
    open.stages = stages;
    const auto found = choose_stages(input, cluster, open);
    ASSERT_EQ(found.size(), 1u);
    double least = found.front().step_s;
    auto stated = open;
    for (std::size_t ways = 0; ways < std::size_t{1} << 6; ++ways) {
      stated.stage_replicas = {1};
      for (std::size_t device = 1; device < 7; ++device) {
        if ((ways >> (device - 1)) & 1) stated.stage_replicas.push_back(0);
        ++stated.stage_replicas.back();
      }
      if (static_cast<int>(stated.stage_replicas.size()) != stages) continue;
      const auto of_layout = choose_stages(input, cluster, stated);
      if (!of_layout.empty()) least = std::min(least, of_layout.front().step_s);
    }
    EXPECT_LE(found.front().step_s, 1.05 * least) << stages << " stages";
  }
}

// Whatever links there are, what is left open is as good as what anybody could have stated.
TEST(StagesChoice, OpenSchedulesAndMicroBatchesAreTheFastest) {
  using parallel::schedule::Kind;
  const auto input = input_of(unequal_units(), 24);
  std::set<Kind> chosen;
  for (const auto& link : {kFastLink, kGigabitLink, LinkSpeed{2e-3, 1e9}, LinkSpeed{0, 1e7}}) {
    for (const std::size_t recomputed : {0, 1}) {
      const auto cluster = apart({1, 1, 2}, std::vector(3, kPlenty), link);
      StagesWish wish{.stages = 3,
                      .any_schedule = true,
                      .any_micro_batches = true,
                      .keeping = {.recomputed_at_once = recomputed}};
      const auto open = choose_stages(input, cluster, wish).front();
      chosen.insert(open.schedule);
      wish.any_schedule = wish.any_micro_batches = false;
      for (wish.micro_batches = 1; wish.micro_batches <= 24; ++wish.micro_batches) {
        for (const auto kind : {Kind::gpipe, Kind::one_f_one_b, Kind::zero_bubble}) {
          if (recomputed > 0 && kind == Kind::zero_bubble) continue;
          wish.schedule = kind;
          const auto stated = choose_stages(input, cluster, wish).front();
          EXPECT_LE(open.step_s, 1.05 * stated.step_s)
              << to_string(kind) << " × " << wish.micro_batches << " beats "
              << to_string(open.schedule) << " × " << open.micro_batches;
        }
      }
    }
  }
  EXPECT_GT(chosen.size(), 1u) << "one schedule would have done";
}

TEST(StagesChoice, CutsAndNumbersOfReplicasMayBeStated) {
  const auto input = input_of(unequal_units(), 12);
  const auto cluster = apart({1, 1, 1}, std::vector(3, kPlenty), kFastLink);
  const auto choices =
      choose_stages(input, cluster, {.stages = 2, .stage_replicas = {2, 1}, .cuts = {6}});
  ASSERT_EQ(choices.size(), 1u);
  EXPECT_EQ(replica_counts(choices[0]), (std::vector<std::size_t>{2, 1}));
  EXPECT_EQ(choices[0].begins()[1], 6u);
  for (const auto& cuts : std::vector<std::vector<std::size_t>>{{2, 4}, {0}, {7}}) {
    EXPECT_THAT(
        choose_stages(input, cluster, {.stages = 2, .stage_replicas = {2, 1}, .cuts = cuts}),
        ::testing::IsEmpty());
  }
}

// train.micro_batch is for those who do not say mesh.micro_batches.
TEST(StagesChoice, StatedMicroBatchesMayBeLarge) {
  auto input = input_of(unequal_units(), 12);
  input.micro_batch = 2;
  const auto cluster = apart({1, 1}, std::vector(2, kPlenty), kFastLink);
  const auto choices = choose_stages(input, cluster, {.stages = 2, .micro_batches = 3});
  ASSERT_EQ(choices.size(), 1u);
  EXPECT_EQ(choices[0].micro_batches, 3);
}

TEST(StagesChoice, ModelsOfFewUnitsHaveFewStages) {
  auto model = unequal_units();
  model.units.resize(2);
  const auto choices = choose_stages(
      input_of(model, 12), apart({1, 1, 1, 1}, std::vector(4, kPlenty), kGigabitLink), {});
  for (const auto& choice : choices) EXPECT_LE(choice.stages.size(), 2u);
}

}  // namespace
}  // namespace bimetal::plan

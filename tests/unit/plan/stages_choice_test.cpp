#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "bimetal/plan/mesh/mesh_plan.h"
#include "bimetal/plan/mesh/mesh_search.h"
#include "bimetal/plan/mesh/pipeline_costs.h"
#include "mesh_clusters.h"

namespace bimetal::plan {
namespace {

constexpr double kEnough = 64 * kGiB;

std::vector<std::size_t> stage_counts(const std::vector<MeshChoice>& choices) {
  std::vector<std::size_t> counts;
  for (const auto& choice : choices) counts.push_back(choice.stages.size());
  return counts;
}

TEST(StagesChoice, EveryoneIsInTheirOrder) {
  const auto choices = choose_stages(
      {input_of(unequal_units(), 12), apart({1, 3, 1, 1}, std::vector(4, kEnough), kFastLink)}, {});
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

TEST(StagesChoice, WhatIsStatedWins) {
  const auto input = input_of(unequal_units(), 12);
  const auto cluster = apart({1, 1, 1, 1}, std::vector(4, kEnough), kGigabitLink);
  EXPECT_THAT(stage_counts(choose_stages({input, cluster}, {.replicas = 2})),
              ::testing::ElementsAre(2));
  EXPECT_THAT(stage_counts(choose_stages({input, cluster}, {.replicas = 4})),
              ::testing::ElementsAre(1));
  EXPECT_THAT(stage_counts(choose_stages({input, cluster}, {.replicas = 3})), ::testing::IsEmpty());
  EXPECT_THAT(stage_counts(choose_stages({input, cluster}, {.pipelines = false})),
              ::testing::ElementsAre(1));
  const auto stated = choose_stages(
      {input, cluster},
      {.replicas = 1, .schedule = parallel::schedule::Kind::gpipe, .micro_batches = 3});
  ASSERT_EQ(stated.size(), 1u);
  EXPECT_EQ(stated[0].micro_batches, 3);
  EXPECT_EQ(stated[0].schedule, parallel::schedule::Kind::gpipe);
}

// Stages, and parts, but not both.
TEST(StagesChoice, StagesMayBeForWholeTensorsAlone) {
  const auto input = input_of(transformer_facts({.layers = 4, .width = 768, .context = 512}), 16);
  const auto cluster = apart({1, 1, 1, 1}, std::vector(4, kEnough), kFastLink);
  const auto most_stages = [&](bool in_parts, bool both) {
    std::size_t most = 0;
    for (const auto& choice :
         choose_stages({input, cluster}, {.tensor = 0, .pipelines_in_parts = both})) {
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

// Seven devices in two to seven stages have 63 layouts, most of which get no more than a glance.
TEST(StagesChoice, WhatGetsNoMoreThanAGlanceIsNotMuchBetter) {
  const auto input = input_of(transformer_facts({.layers = 12, .width = 512, .context = 256}), 64);
  const auto cluster = apart({4, 1, 2, 2, 1, 3, 1}, std::vector(7, kEnough), kFastLink);
  StagesWish open{.any_schedule = true, .any_micro_batches = true};
  for (const int stages : {2, 3, 4}) {
    open.stages = stages;
    const auto found = choose_stages({input, cluster}, open);
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
      const auto of_layout = choose_stages({input, cluster}, stated);
      if (!of_layout.empty()) least = std::min(least, of_layout.front().step_s);
    }
    EXPECT_LE(found.front().step_s, 1.05 * least) << stages << " stages";
  }
}

// With any links, the choice for open settings is as good as any that could have been stated.
TEST(StagesChoice, OpenSchedulesAndMicroBatchesAreTheFastest) {
  using parallel::schedule::Kind;
  const auto input = input_of(unequal_units(), 24);
  std::set<Kind> chosen;
  for (const auto& link : {kFastLink, kGigabitLink, LinkSpeed{2e-3, 1e9}, LinkSpeed{0, 1e7}}) {
    for (const std::size_t recomputed : {0, 1}) {
      const auto cluster = apart({1, 1, 2}, std::vector(3, kEnough), link);
      StagesWish wish{.stages = 3,
                      .any_schedule = true,
                      .any_micro_batches = true,
                      .keeping = {.recomputed_at_once = recomputed}};
      const auto open = choose_stages({input, cluster}, wish).front();
      chosen.insert(open.schedule);
      wish.any_schedule = wish.any_micro_batches = false;
      for (wish.micro_batches = 1; wish.micro_batches <= 24; ++wish.micro_batches) {
        for (const auto kind : {Kind::gpipe, Kind::one_f_one_b, Kind::zero_bubble}) {
          if (recomputed > 0 && kind == Kind::zero_bubble) continue;
          wish.schedule = kind;
          const auto stated = choose_stages({input, cluster}, wish).front();
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
  const auto cluster = apart({1, 1, 1}, std::vector(3, kEnough), kFastLink);
  const auto choices =
      choose_stages({input, cluster}, {.stages = 2, .stage_replicas = {2, 1}, .cuts = {6}});
  ASSERT_EQ(choices.size(), 1u);
  EXPECT_EQ(replica_counts(choices[0]), (std::vector<std::size_t>{2, 1}));
  EXPECT_EQ(choices[0].begins()[1], 6u);
  for (const auto& cuts : std::vector<std::vector<std::size_t>>{{2, 4}, {0}, {7}}) {
    EXPECT_THAT(
        choose_stages({input, cluster}, {.stages = 2, .stage_replicas = {2, 1}, .cuts = cuts}),
        ::testing::IsEmpty());
  }
}

TEST(StagesChoice, ModelsOfFewUnitsHaveFewStages) {
  auto model = unequal_units();
  model.units.resize(2);
  const auto choices = choose_stages(
      {input_of(model, 12), apart({1, 1, 1, 1}, std::vector(4, kEnough), kGigabitLink)}, {});
  for (const auto& choice : choices) EXPECT_LE(choice.stages.size(), 2u);
}

// Pipelines whose stages have several pieces of the model, planned.
using parallel::schedule::Kind;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

const std::vector<double> kRoomy(4, 64 * kGiB);

/// Units of a second of forward for a sample and two of backward, that leave and give `bytes`.
ModelFacts alike_units(std::size_t count, double bytes = 0) {
  ModelFacts facts;
  facts.units.assign(count, {.name = "unit",
                             .parameters = 1000,
                             .output = {0, bytes},
                             .saved = {0, bytes},
                             .forward_s = {0, 1},
                             .backward_s = {0, 2}});
  return facts;
}

MeshChoice interleaved(const MeshInput& input, const Cluster& cluster, int stages, int chunks,
                       int micro_batches, std::vector<std::size_t> cuts = {}) {
  Layout layout;
  for (int device = 0; device < stages; ++device) layout.push_back({device});
  const auto choice = choose_cut({input, cluster}, layout,
                                 {.schedule = Kind::interleaved,
                                  .chunks = chunks,
                                  .micro_batches = micro_batches,
                                  .cuts = std::move(cuts)});
  EXPECT_TRUE(choice);
  return simulated({input, cluster}, choice.value_or(MeshChoice()));
}

TEST(Interleaved, IsWhatItsScheduleComesTo) {
  const auto input = input_of(alike_units(8), 4);
  const auto cluster = apart({1, 1}, kRoomy, {0, 1e15});
  const auto choice = interleaved(input, cluster, 2, 2, 4);
  EXPECT_THAT(choice.begins(), ElementsAre(0, 2, 4, 6));
  EXPECT_THAT(choice.stages[1].pieces, ElementsAre(UnitRange{2, 4}, UnitRange{6, 8}));
  // Four micro-batches of 4 · 3 s on each stage, and half of one, of F + B of a piece, idle.
  EXPECT_NEAR(choice.step_s, 4 * 12 + 6, 1e-9);
  EXPECT_NEAR(choice.compute_s, 4 * 12, 1e-9);
  const auto unlike = interleaved(input, cluster, 2, 2, 4, {1, 4, 7});
  const std::vector<parallel::schedule::PieceCost> costs = {
      {1, 1, 1}, {3, 3, 3}, {3, 3, 3}, {1, 1, 1}};
  EXPECT_NEAR(unlike.step_s,
              simulate(parallel::schedule::schedules(Kind::interleaved, {2, 4, 2}), costs).seconds,
              1e-9);
}

TEST(Interleaved, NeedsRoundsUnitsAndABox) {
  const auto input = input_of(alike_units(8), 12);
  const auto cluster = apart({1, 1, 1}, kRoomy, kFastLink);
  const auto can = [&](const Layout& layout, int chunks, int micro_batches) {
    return choose_cut(
               {input, cluster}, layout,
               {.schedule = Kind::interleaved, .chunks = chunks, .micro_batches = micro_batches})
        .has_value();
  };
  EXPECT_TRUE(can({{0}, {1}}, 4, 4));
  EXPECT_FALSE(can({{0}, {1}}, 5, 4));
  EXPECT_FALSE(can({{0}, {1}}, 2, 5));
  EXPECT_FALSE(can({{0}, {1, 2}}, 2, 4));
}

/// The best mesh of four devices and as many micro-batches, if no device has room for more than
/// half of the model.
MeshChoice best_over(const LinkSpeed& link) {
  auto model = transformer_facts({.layers = 30, .width = 1024, .context = 512});
  model.split_inputs = 0.7;
  model.split_weights = 0.9;
  auto input = input_of(model, 8);
  input.most_level = 0;
  input.parts = false;
  const double room = 8 * static_cast<double>(model.elements());
  const auto cluster = apart({1, 1, 1, 1}, std::vector<double>(4, room), link);
  const auto plan = plan_mesh({input, cluster});
  EXPECT_FALSE(plan.best.empty());
  return plan.best.front();
}

TEST(Interleaved, IsFoundWhereABubbleCostsMoreThanSending) {
  const auto best = best_over(kFastLink);
  EXPECT_EQ(best.schedule, Kind::interleaved);
  EXPECT_GE(best.chunks, 2);
  EXPECT_EQ(best.stages.front().pieces.size(), static_cast<std::size_t>(best.chunks));
  EXPECT_EQ(best.micro_batches % std::ssize(best.stages), 0);
  EXPECT_NE(best_over({1e-3, 5e6}).schedule, Kind::interleaved);
}

TEST(Interleaved, MayBeAskedFor) {
  const auto input = input_of(alike_units(9), 12);
  const auto cluster = apart({1, 1}, kRoomy, kFastLink);
  const StagesWish wish{.stages = 2, .schedule = Kind::interleaved, .chunks = 3};
  const auto usual = choose_stages({input, cluster}, wish);
  ASSERT_EQ(usual.size(), 1u);
  EXPECT_EQ(usual[0].chunks, 3);
  EXPECT_EQ(usual[0].micro_batches, 8) << "four for each stage";
  auto stated = wish;
  stated.cuts = {1, 3, 4, 6, 8};
  stated.micro_batches = 6;
  const auto own = choose_stages({input, cluster}, stated).at(0);
  EXPECT_THAT(own.begins(), ElementsAre(0, 1, 3, 4, 6, 8));
  EXPECT_EQ(describe(cluster, own), "2 stages, interleaved × 3 chunks × 6 micro-batches");
  EXPECT_THAT(keys_of(own), HasSubstr("mesh.cuts=[1, 3, 4, 6, 8]"));
  EXPECT_THAT(keys_of(own), HasSubstr("mesh.chunks=3"));
  MeshPlan plan;
  plan.best = {own};
  EXPECT_THAT(mesh_advice(cluster, plan), HasSubstr("stage 1: units 1 to 2 and 4 to 5 and 8"));
}

}  // namespace
}  // namespace bimetal::plan

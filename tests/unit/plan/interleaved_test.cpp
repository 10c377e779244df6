// Pipelines whose stages have several pieces of the model, planned.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "bimetal/plan/mesh/mesh_advice.h"
#include "bimetal/plan/mesh/pipeline_choice.h"
#include "bimetal/plan/mesh/pipeline_costs.h"
#include "bimetal/plan/mesh/stages_choice.h"
#include "mesh_clusters.h"

namespace bimetal::plan {
namespace {

using parallel::schedule::Kind;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

const std::vector<double> kRoomy(4, 64 * kGiB);

/// Of a second of forward for a sample and two of backward, that leave and give `bytes`.
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
  const auto choice = choose_cut(input, cluster, layout,
                                 {.schedule = Kind::interleaved,
                                  .chunks = chunks,
                                  .micro_batches = micro_batches,
                                  .cuts = std::move(cuts)});
  EXPECT_TRUE(choice);
  return simulated(input, cluster, choice.value_or(MeshChoice()));
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

TEST(Interleaved, ComesByTheWayFromTheLastStageToTheFirst) {
  const auto input = input_of(alike_units(8, 1e6), 4);
  Network network{.hosts = {{.name = "a"}}, .pairs = std::vector<LinkSpeed>(4, LinkSpeed{0, 1e15})};
  network.pairs[1 * 2 + 0] = {0, 1e6};  // a second for what one unit gives of a sample
  const Cluster cluster(std::vector<MeshDevice>(2), network);
  const auto costs = piece_costs(input, cluster, interleaved(input, cluster, 2, 2, 4));
  ASSERT_EQ(costs.size(), 4u);
  EXPECT_NEAR(costs[1].send_forward, 1, 1e-6);
  for (const auto piece : {1u, 3u}) EXPECT_NEAR(costs[piece].send_backward, 1, 1e-6) << piece;
  for (const auto piece : {0u, 2u}) EXPECT_NEAR(costs[piece].send_forward, 0, 1e-6) << piece;
  EXPECT_NEAR(costs[2].send_backward, 0, 1e-6);
  EXPECT_EQ(costs[3].send_forward, 0);
}

// Each unit leaves so many bytes, and each piece but the first its input.
TEST(Interleaved, KeepsWhatItsScheduleKeeps) {
  const auto input = input_of(alike_units(12, 1000), 12);
  const auto cluster = apart({1, 1, 1}, kRoomy, kFastLink);
  auto choice = interleaved(input, cluster, 3, 2, 12, {1, 4, 6, 9, 10});
  auto costs = piece_costs(input, cluster, choice);
  const auto begins = choice.begins();
  for (std::size_t p = 0; p < costs.size(); ++p) {
    const auto end = p + 1 < begins.size() ? begins[p + 1] : 12;
    costs[p].activations = 1000.0 * static_cast<double>(end - begins[p] + (p > 0 ? 1 : 0));
  }
  const auto run = simulate(parallel::schedule::schedules(Kind::interleaved, {3, 12, 2}), costs);
  take_memory(input, cluster, choice);
  for (std::size_t s = 0; s < 3; ++s) {
    double units = 0;
    for (const auto& [begin, end] : choice.stages[s].pieces) {
      units += static_cast<double>(end - begin);
    }
    EXPECT_DOUBLE_EQ(choice.peak_bytes[s], 2 * 4 * 1000 * units + run.peak[s]) << s;
  }
}

TEST(Interleaved, FitsIntoItsDevices) {
  const auto input = input_of(alike_units(12, 1000), 12);
  const double unit = 2 * 4 * 1000;
  const auto cluster = apart({1, 1}, {64 * kGiB, 4.5 * unit + 20 * 1000}, kFastLink);
  const auto choice = interleaved(input, cluster, 2, 2, 4);
  EXPECT_TRUE(choice.fits());
  EXPECT_LE(choice.peak_bytes[1], cluster.device(1).memory_bytes);
  EXPECT_GT(choice.peak_bytes[0], choice.peak_bytes[1]);
}

TEST(Interleaved, NeedsRoundsUnitsAndABox) {
  const auto input = input_of(alike_units(8), 12);
  const auto cluster = apart({1, 1, 1}, kRoomy, kFastLink);
  const auto can = [&](const Layout& layout, int chunks, int micro_batches) {
    return choose_cut(
               input, cluster, layout,
               {.schedule = Kind::interleaved, .chunks = chunks, .micro_batches = micro_batches})
        .has_value();
  };
  EXPECT_TRUE(can({{0}, {1}}, 4, 4));
  EXPECT_FALSE(can({{0}, {1}}, 5, 4));
  EXPECT_FALSE(can({{0}, {1}}, 2, 5));
  EXPECT_FALSE(can({{0}, {1, 2}}, 2, 4));
}

/// Of four devices and as many micro-batches, where nobody has room for more than half of it.
MeshChoice best_over(const LinkSpeed& link) {
  auto model = transformer_facts({.layers = 30, .width = 1024, .context = 512});
  model.split_inputs = 0.7;
  model.split_weights = 0.9;
  auto input = input_of(model, 8);
  input.most_level = 0;
  input.parts = false;
  const double room = 8 * static_cast<double>(model.elements());
  const auto cluster = apart({1, 1, 1, 1}, std::vector<double>(4, room), link);
  const auto plan = plan_mesh(input, cluster);
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

TEST(Interleaved, IsOneOfTheOpenSchedules) {
  const auto input = input_of(alike_units(16, 1e3), 8);
  StagesWish wish{.stages = 4, .any_schedule = true, .any_micro_batches = true};
  const auto over = [&](const LinkSpeed& link) {
    auto facts = input;
    facts.facts.front().split_inputs = facts.facts.front().split_weights = 0.9;
    return choose_stages(facts, apart({1, 1, 1, 1}, kRoomy, link), wish).front();
  };
  const auto fast = over(kFastLink);
  EXPECT_EQ(fast.schedule, Kind::interleaved);
  EXPECT_EQ(fast.chunks, 4);
  EXPECT_NE(over({20, 1e9}).schedule, Kind::interleaved) << "of 20 s each";
  wish.keeping.level = 2;
  EXPECT_NE(over(kFastLink).schedule, Kind::interleaved) << "no level that it goes with";
}

TEST(Interleaved, MayBeAskedFor) {
  const auto input = input_of(alike_units(9), 12);
  const auto cluster = apart({1, 1}, kRoomy, kFastLink);
  const StagesWish wish{.stages = 2, .schedule = Kind::interleaved, .chunks = 3};
  const auto usual = choose_stages(input, cluster, wish);
  ASSERT_EQ(usual.size(), 1u);
  EXPECT_EQ(usual[0].chunks, 3);
  EXPECT_EQ(usual[0].micro_batches, 8) << "four for each stage";
  auto stated = wish;
  stated.cuts = {1, 3, 4, 6, 8};
  stated.micro_batches = 6;
  const auto own = choose_stages(input, cluster, stated).at(0);
  EXPECT_THAT(own.begins(), ElementsAre(0, 1, 3, 4, 6, 8));
  EXPECT_EQ(describe(cluster, own), "2 stages, interleaved × 3 chunks × 6 micro-batches");
  EXPECT_THAT(keys_of(own), HasSubstr("mesh.cuts=[1, 3, 4, 6, 8]"));
  EXPECT_THAT(keys_of(own), HasSubstr("mesh.chunks=3"));
  MeshPlan plan;
  plan.best = {own};
  EXPECT_THAT(mesh_advice(cluster, plan), HasSubstr("stage 1: units 1 to 2 and 4 to 5 and 8"));
}

// Whatever cuts there are, what is chosen is as good as nearly all of them, as it runs.
TEST(Interleaved, IsCutNearlyAsWellAsCanBe) {
  const auto input = input_of(unequal_units(), 8);
  for (const auto& speeds : std::vector<std::vector<double>>{{1, 1}, {2, 1}, {1, 3}}) {
    const auto cluster = apart(speeds, kRoomy, kFastLink);
    double best = 1e300;
    for (std::size_t a = 1; a < 7; ++a) {
      for (std::size_t b = a + 1; b < 7; ++b) {
        for (std::size_t c = b + 1; c < 7; ++c) {
          best = std::min(best, interleaved(input, cluster, 2, 2, 8, {a, b, c}).step_s);
        }
      }
    }
    EXPECT_LE(interleaved(input, cluster, 2, 2, 8).step_s, 1.05 * best) << speeds[0];
  }
}

TEST(Interleaved, TensorsMayBeInPartsToo) {
  const auto input = input_of(transformer_facts({.layers = 10, .width = 768, .context = 512}), 8);
  const auto cluster = apart({1, 1, 1, 1}, kRoomy, kFastLink);
  const auto choice =
      choose_stages(input, cluster,
                    {.stages = 2, .tensor = 2, .schedule = Kind::interleaved, .chunks = 2})
          .at(0);
  EXPECT_EQ(choice.most_parts(), 2u);
  EXPECT_EQ(choice.begins().size(), 4u);
  EXPECT_EQ(choice.peak_bytes.size(), 4u);
  EXPECT_GT(choice.summed_s, 0);
  EXPECT_EQ(run_of(input, cluster, choice).stages.size(), 2u);
}

}  // namespace
}  // namespace bimetal::plan

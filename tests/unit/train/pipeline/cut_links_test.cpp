#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <new>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "bimetal/parallel/pipeline/stage_seconds.h"
#include "bimetal/train/measure/unit_measure.h"
#include "bimetal/train/pipeline/choose_cuts.h"
#include "support/in_process_mesh.h"
#include "support/thread_ranks.h"
#include "unit/train/pipeline/row_task.h"

namespace bimetal::train {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::Pair;

TEST(CutLinks, ActivationsGoToTheSameReplicaAndPart) {
  EXPECT_THAT(ways_of({.stages = 3}, 1),
              ElementsAre(ElementsAre(Pair(0, 1)), ElementsAre(Pair(1, 2))));
  EXPECT_THAT(ways_of({.stages = 2, .replicas = 2}, 1),
              ElementsAre(ElementsAre(Pair(0, 2), Pair(1, 3))));
  EXPECT_THAT(ways_of({.stages = 2, .tensor = 2}, 1),
              ElementsAre(ElementsAre(Pair(0, 2), Pair(1, 3))));
}

TEST(CutLinks, ReplicasOfTheirOwnNumberSendToAll) {
  EXPECT_THAT(ways_of({.stages = 2, .replicas = 0, .uneven = {1, 2}}, 1),
              ElementsAre(ElementsAre(Pair(0, 1), Pair(0, 2))));
}

TEST(CutLinks, PartsOfTheirOwnNumberSendToWhoListens) {
  const parallel::MeshShape shape{.stages = 3, .tensor = 2, .parts = {1, 2, 1}};
  EXPECT_THAT(ways_of(shape, 1), ElementsAre(ElementsAre(Pair(0, 1), Pair(0, 2)),
                                             ElementsAre(Pair(1, 3), Pair(2, 3))));
}

TEST(CutLinks, WithSeveralPiecesTheLastStageSendsToTheFirst) {
  EXPECT_THAT(ways_of({.stages = 2}, 2),
              ElementsAre(ElementsAre(Pair(0, 1)), ElementsAre(Pair(1, 0))));
  const std::vector<StageWays> ways = {{.there = {{1, 10}}, .back = {}},
                                       {.there = {{2, 10}}, .back = {}}};
  EXPECT_THAT(send_seconds(ways, {10}), ElementsAre(ElementsAre(2), ElementsAre(3)));
}

TEST(CutLinks, TheSlowestWayCountsInEachDirection) {
  const std::vector<StageWays> ways = {
      {.there = {{1, 100}, {0, 10}}, .back = {{5, 100}, {0, 1000}}}};
  EXPECT_THAT(send_seconds(ways, {100, 0}), ElementsAre(ElementsAre(10 + 6, 0)))
      << "nothing given, no message";
}

TEST(CutLinks, WhatIsShortenedTakesLess) {
  const std::vector<StageWays> ways = {{.there = {{1, 10}}, .back = {{2, 10}}, .sent = 0.25},
                                       {.there = {{1, 10}}, .back = {}}};
  EXPECT_THAT(send_seconds(ways, {40}), ElementsAre(ElementsAre(2 + 3), ElementsAre(5)));
}

/// The fraction of each byte that goes from the first of two stages to the second one.
double sent_between(const std::vector<std::string>& islands, comm::CompressedLinks links) {
  std::vector<comm::GroupOptions> options;
  for (const auto& island : islands) options.push_back({.island = island});
  std::vector<double> sent(islands.size());
  const auto count = static_cast<int>(islands.size());
  bimetal::testing::run_ranks(
      bimetal::testing::make_groups(bimetal::testing::make_in_process_meshes(count), options),
      [&](int rank, comm::Group group) {
        const parallel::MeshShape shape{.stages = 2, .replicas = count / 2};
        const auto ways =
            measure_ways(group, shape, 1, {comm::Scheme::int8, links}, torch::kFloat32);
        sent[static_cast<std::size_t>(rank)] = ways.at(0).sent;
      });
  EXPECT_THAT(sent, Each(sent[0]));
  return sent[0];
}

TEST(CutLinks, WaysAreShortenedAsTheRunShortensThem) {
  using enum comm::CompressedLinks;
  EXPECT_NEAR(sent_between({"a", "a"}, all), 0.254, 1e-3);
  EXPECT_EQ(sent_between({"a", "a"}, between_islands), 1);
  EXPECT_NEAR(sent_between({"a", "b"}, between_islands), 0.254, 1e-3);
  EXPECT_NEAR(sent_between({"a", "a", "a", "b"}, between_islands), 0.254, 1e-3)
      << "of the replica's ways the slow one";
}

TEST(CutLinks, AreMeasuredWithFiguresThatAllShare) {
  const parallel::MeshShape shape{.stages = 2, .replicas = 2};
  std::vector<std::vector<StageWays>> ways(4);
  bimetal::testing::run_ranks(4, [&](int rank, comm::Group group) {
    ways[static_cast<std::size_t>(rank)] = measure_ways(group, shape, 1, {}, torch::kFloat32);
  });
  const std::vector<double> bytes = {1e6, 1e3};
  for (const auto& of_rank : ways) {
    ASSERT_EQ(of_rank.size(), 1u);
    EXPECT_EQ(of_rank[0].there.size(), 2u);
    EXPECT_EQ(send_seconds(of_rank, bytes), send_seconds(ways[0], bytes));
  }
  const auto seconds = send_seconds(ways[0], bytes);
  EXPECT_GT(seconds[0][0], seconds[0][1]);
}

constexpr double kRow = 16 * sizeof(float);

std::optional<plan::ModelFacts> facts_of(const test::RowTask& task, std::int64_t at_once) {
  return measure_units({}, task, {.timed = Timed::passes, .at_once = at_once});
}

TEST(UnitMeasure, IsOfNoMoreSamplesThanAMicroBatchHas) {
  test::RowTask task;
  task.units = 3;
  std::set<std::int64_t> computed;
  task.before = [&](std::int64_t samples) { computed.insert(samples); };
  const auto facts = facts_of(task, 8).value();
  EXPECT_THAT(computed, ElementsAre(2, 8));
  for (const auto& unit : facts.units) {
    EXPECT_GT(unit.forward_s.at(8), 0);
    EXPECT_DOUBLE_EQ(unit.output.at(32), 32 * kRow);
  }
  computed.clear();
  EXPECT_DOUBLE_EQ(facts_of(task, 1)->units[0].output.at(1), kRow);
  EXPECT_THAT(computed, ElementsAre(1, 2)) << "one tells nothing of what grows";
}

TEST(UnitMeasure, OfMoreSamplesThanThereAreIsInProportion) {
  test::RowTask task;
  task.data = 8;
  EXPECT_DOUBLE_EQ(facts_of(task, 32)->units[0].output.at(32), 32 * kRow);
}

TEST(UnitMeasure, OfSamplesThatDoNotFitIsInProportion) {
  test::RowTask task;
  task.before = [](std::int64_t samples) {
    if (samples > 3) throw std::bad_alloc();
  };
  EXPECT_DOUBLE_EQ(facts_of(task, 32)->units[0].output.at(32), 32 * kRow);
  task.before = [](std::int64_t) { throw std::bad_alloc(); };
  EXPECT_FALSE(facts_of(task, 32));
}

}  // namespace
}  // namespace bimetal::train

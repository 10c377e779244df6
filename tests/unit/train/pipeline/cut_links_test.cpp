#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "bimetal/parallel/pipeline/measured_cut.h"
#include "bimetal/train/pipeline/choose_cuts.h"
#include "support/in_process_mesh.h"
#include "support/thread_ranks.h"

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
  EXPECT_THAT(send_seconds(ways, {{10}, {0}}), ElementsAre(ElementsAre(2), ElementsAre(3)));
}

TEST(CutLinks, TheSlowestWayCountsInEachDirection) {
  const std::vector<StageWays> ways = {
      {.there = {{1, 100}, {0, 10}}, .back = {{5, 100}, {0, 1000}}}};
  EXPECT_THAT(send_seconds(ways, {{100, 2}, {50, 0}}), ElementsAre(ElementsAre(10 + 5.5, 1.02)))
      << "no gradient, no message";
}

/// Where two like stages are cut, of ten units of a second that give ever less.
std::size_t cut_over(const plan::LinkSpeed& link, double sent = 1) {
  CutBytes bytes;
  for (int unit = 0; unit < 10; ++unit) bytes.forward.push_back(unit < 6 ? 8e6 : 1e6);
  bytes.backward = bytes.forward;
  const parallel::pipeline::MeasuredUnits measured{
      .seconds = std::vector<double>(20, 1.0),
      .units = 10,
      .send = send_seconds({{.there = {link}, .back = {link}, .sent = sent}}, bytes)};
  return parallel::pipeline::measured_cut(measured, {.stages = 2}, 1, 8).at(1);
}

TEST(CutLinks, OverASlowLinkStagesAreCutWhereLessIsSent) {
  EXPECT_EQ(cut_over({1e-4, 1e9}), 5u);
  EXPECT_EQ(cut_over({1e-2, 2e6}), 7u);
  EXPECT_EQ(cut_over({1e-2, 2e6}, /*sent=*/0.01), 5u) << "less is sent everywhere";
}

TEST(CutLinks, WhatIsShortenedTakesLess) {
  const std::vector<StageWays> ways = {{.there = {{1, 10}}, .back = {{2, 10}}, .sent = 0.25},
                                       {.there = {{1, 10}}, .back = {}}};
  EXPECT_THAT(send_seconds(ways, {{40}, {80}}), ElementsAre(ElementsAre(2 + 4), ElementsAre(5)));
}

/// What of each byte goes from the first of two stages to the second one.
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
  const CutBytes bytes{{1e6, 1e3}, {1e6, 1e3}};
  for (const auto& of_rank : ways) {
    ASSERT_EQ(of_rank.size(), 1u);
    EXPECT_EQ(of_rank[0].there.size(), 2u);
    EXPECT_EQ(send_seconds(of_rank, bytes), send_seconds(ways[0], bytes));
  }
  const auto seconds = send_seconds(ways[0], bytes);
  EXPECT_GT(seconds[0][0], seconds[0][1]);
}

}  // namespace
}  // namespace bimetal::train

#include <gtest/gtest.h>

#include "bimetal/base/error.h"
#include "bimetal/train/pipeline/stage_compute.h"
#include "bimetal/train/replicas.h"
#include "support/errors.h"
#include "support/thread_ranks.h"

namespace bimetal::train {
namespace {

std::vector<progress::RankFigures> told(const std::vector<double>& seconds) {
  std::vector<progress::RankFigures> figures;
  for (const auto one : seconds) figures.push_back({.compute_seconds = one});
  return figures;
}

/// Runs `check` on rank 0's mesh of a job with one stage on one rank, the next on two.
template <typename Check>
void with_mesh_of_three(const Check& check) {
  testing::run_ranks(3, [&](int rank, comm::Group group) {
    const auto mesh = std::make_shared<const parallel::Mesh>(
        group, parallel::MeshShape{.stages = 2, .replicas = 0, .uneven = {1, 2}});
    if (rank == 0) check(mesh);
  });
}

TEST(Dealer, LearnsWhichReplicaIsFaster) {
  with_mesh_of_three([](const auto& mesh) {
    const std::vector<std::int64_t> samples(8, 3);
    Dealer dealer(mesh, {}, true);
    EXPECT_EQ(dealer.deal(samples).samples(1, 0), 12);
    dealer.learn(told({1, 1, 3}));
    EXPECT_EQ(dealer.deal(samples).samples(1, 0), 18);
    EXPECT_EQ(dealer.spread(samples).samples(1, 1), 6);
    Dealer fixed(mesh, {1, 1, 3}, false);
    fixed.deal(samples);
    fixed.learn(told({1, 1, 3}));
    EXPECT_EQ(fixed.deal(samples).samples(1, 1), 18);
  });
}

TEST(Dealer, TriesAgainWhoGetsNothing) {
  with_mesh_of_three([](const auto& mesh) {
    const std::vector<std::int64_t> samples(4, 1);
    Dealer dealer(mesh, {1, 1, 0.1}, true);
    int steps = 0;
    while (dealer.deal(samples).samples(1, 1) == 0 && steps < 200) {
      dealer.learn(told({4, 4, 0}));
      ++steps;
    }
    EXPECT_GT(steps, 5);
    EXPECT_LT(steps, 200);
  });
}

TEST(Dealer, TriesWhoWasNotMeasuredAndGetsNothing) {
  with_mesh_of_three([](const auto& mesh) {
    const std::vector<std::int64_t> samples = {1};
    Dealer dealer(mesh, {}, true);
    int steps = 0;
    while (dealer.deal(samples).samples(1, 1) == 0 && steps < 5) {
      dealer.learn(told({1, 1, 0}));
      ++steps;
    }
    EXPECT_GT(steps, 0);
    EXPECT_LT(steps, 5);
  });
}

TEST(Dealer, AWeightOfZeroIsNothing) {
  with_mesh_of_three([](const auto& mesh) {
    const std::vector<std::int64_t> samples(6, 1);
    EXPECT_EQ(Dealer(mesh, {1, 1, 0}, false).spread(samples).samples(1, 0), 6);
    EXPECT_EQ(Dealer(mesh, {1, 0, 1}, false).spread(samples).samples(1, 1), 6);
    EXPECT_EQ(Dealer(mesh, {1, 1, 0}, true).spread(samples).samples(1, 0), 3) << "not known";
    expect_error(ErrorCode::InvalidArgument,
                 {"leaves stage 1 of 2 to nobody: give one of "
                  "ranks 1 to 2 a weight above 0"},
                 [&] {
                   Dealer(mesh, {1, 0, 0}, false);
                 });
  });
}

TEST(Dealer, WantsASpeedForEachRank) {
  with_mesh_of_three([](const auto& mesh) {
    expect_error(ErrorCode::InvalidArgument, {"one for each of the 3 workers"}, [&] {
      Dealer(mesh, {1, 2}, false);
    });
  });
}

TEST(Lanes, WithoutAMeshEachRankHasItsOwn) {
  const Lanes lanes(3, 2);
  EXPECT_EQ(lanes.count(), 3);
  EXPECT_EQ(lanes.mine(), 2);
  EXPECT_FALSE(lanes.shared());
  EXPECT_EQ(lanes.counted(7), 7);
  EXPECT_EQ(lanes.by_rank({5, 0, 1}), (std::vector<std::int64_t>{5, 0, 1}));
}

TEST(Lanes, StagesOfAReplicaShareOne) {
  const parallel::MeshShape shape{.stages = 3, .replicas = 2};
  std::int64_t counted = 0;
  for (int rank = 0; rank < shape.ranks(); ++rank) {
    const Lanes lanes(shape, rank);
    EXPECT_EQ(lanes.mine(), rank % 2);
    EXPECT_TRUE(lanes.shared());
    if (lanes.mine() == 0) counted += lanes.counted(10);
  }
  EXPECT_EQ(counted, 10) << "each sample once";
  EXPECT_EQ(Lanes(shape, 0).by_rank({8, 2}), (std::vector<std::int64_t>{8, 2, 8, 2, 8, 2}));
}

TEST(Lanes, StagesWithReplicasOfTheirOwnNumberAreOne) {
  const parallel::MeshShape shape{.stages = 2, .replicas = 0, .uneven = {1, 2}};
  std::vector<std::int64_t> counted;
  for (int rank = 0; rank < shape.ranks(); ++rank) {
    const Lanes lanes(shape, rank);
    EXPECT_EQ(lanes.count(), 1);
    EXPECT_EQ(lanes.mine(), 0);
    EXPECT_TRUE(lanes.shared());
    counted.push_back(lanes.counted(10));
  }
  EXPECT_EQ(counted, (std::vector<std::int64_t>{5, 2, 3}));
}

TEST(Lanes, OfPartsOfTheirOwnNumberEachSampleCountsOnce) {
  const parallel::MeshShape shape{.stages = 2, .replicas = 1, .tensor = 2, .parts = {1, 2}};
  std::vector<std::int64_t> counted;
  for (int rank = 0; rank < shape.ranks(); ++rank)
    counted.push_back(Lanes(shape, rank).counted(10));
  EXPECT_EQ(counted, (std::vector<std::int64_t>{5, 2, 3}));
}

TEST(Lanes, AreAsFastAsTheirSlowestStage) {
  const Lanes lanes(parallel::MeshShape{.stages = 2, .replicas = 2}, 0);
  std::vector<progress::RankFigures> figures(4);
  figures[0] = {.batch = 3, .compute_seconds = 1};
  figures[1] = {.batch = 1, .compute_seconds = 4};
  figures[2] = {.batch = 3, .compute_seconds = 2, .fit = progress::Fit::too_large};
  figures[3] = {.batch = 1, .compute_seconds = 3};
  const auto learnt = lanes.learnt(figures);
  ASSERT_EQ(learnt.size(), 2u);
  EXPECT_EQ(learnt[0].batch, 6);
  EXPECT_EQ(learnt[0].compute_seconds, 2);
  EXPECT_TRUE(learnt[0].out_of_memory);
  EXPECT_EQ(learnt[1].compute_seconds, 4);
}

}  // namespace
}  // namespace bimetal::train

#include <gtest/gtest.h>

#include "bimetal/train/replicas.h"

namespace bimetal::train {
namespace {

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

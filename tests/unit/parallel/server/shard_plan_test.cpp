#include "bimetal/parallel/server/shard_plan.h"

#include <gtest/gtest.h>

#include <limits>
#include <vector>

#include "bimetal/base/error.h"

namespace bimetal::parallel::server {
namespace {

using Sizes = std::vector<std::int64_t>;
using Weights = std::vector<double>;

/// Each element of each tensor lies in one piece, and each element of a shard in one piece.
void expect_whole(const ShardPlan& plan, const Sizes& tensors) {
  Sizes covered(tensors.size(), 0), shard(plan.shard_elements.size(), 0);
  for (const Piece& piece : plan.pieces) {
    EXPECT_EQ(piece.offset, covered[piece.tensor]);
    covered[piece.tensor] += piece.count;
    auto& end = shard[static_cast<std::size_t>(piece.server)];
    EXPECT_EQ(piece.shard_offset, end);
    end += piece.count;
  }
  EXPECT_EQ(covered, tensors);
  EXPECT_EQ(shard, plan.shard_elements);
}

TEST(ShardPlan, SplitsALargeTensorEvenly) {
  const Sizes tensors{320, 1001, 10};
  const auto plan = plan_shards(tensors, Weights{1, 1}, 100);
  expect_whole(plan, tensors);
  for (const Piece& piece : plan.pieces) EXPECT_LE(piece.count, 100);
  EXPECT_NEAR(plan.shard_elements[0], plan.shard_elements[1], 100);
}

TEST(ShardPlan, FollowsTheWeights) {
  const Sizes tensors{100000, 300};
  const auto plan = plan_shards(tensors, Weights{3, 1}, 1000);
  expect_whole(plan, tensors);
  EXPECT_NEAR(static_cast<double>(plan.shard_elements[0]) / 100300, 0.75, 0.01);
}

TEST(ShardPlan, ServersMayHaveNothing) {
  const auto plan = plan_shards(Sizes{3}, Weights{1, 1, 1});
  expect_whole(plan, {3});
  EXPECT_EQ(plan.pieces.size(), 1u);
}

TEST(ShardPlan, RefusesWhatMakesNoSense) {
  EXPECT_THROW(plan_shards(Sizes{3}, Weights{}), Error);
  EXPECT_THROW(plan_shards(Sizes{3}, Weights{0}), Error);
  EXPECT_THROW(plan_shards(Sizes{-1}, Weights{1}), Error);
  EXPECT_THROW(plan_shards(Sizes{3}, Weights{1}, 0), Error);
}

using Rows = std::vector<std::vector<LinkRate>>;
using Shares = std::vector<double>;

TEST(ShardWeights, FollowTheRates) {
  EXPECT_EQ(weights_of(Rows{{{100, 100}, {25, 25}}}), (Shares{1, 0.25}));
  EXPECT_EQ(weights_of(Rows{{{10, 10}, {40, 40}, {20, 20}}}), (Shares{0.25, 1, 0.5}));
}

TEST(ShardWeights, BothDirectionsCount) {
  // 1/100 + 1/100 seconds per byte against 1/100 + 1/20.
  EXPECT_EQ(weights_of(Rows{{{100, 100}, {100, 20}}}), (Shares{1, 0.33}));
}

TEST(ShardWeights, NoiseMakesNoOddPlan) {
  EXPECT_EQ(weights_of(Rows{{{100, 100}, {81, 81}, {90, 90}}}), (Shares{1, 1, 1}));
  // Those behind the first group are alike among themselves.
  EXPECT_EQ(weights_of(Rows{{{100, 100}, {50, 50}, {45, 45}}}), (Shares{1, 0.5, 0.5}));
}

TEST(ShardWeights, EveryWorkerCounts) {
  // The first worker is on server 0's host, the second one sees two links that are alike.
  EXPECT_EQ(weights_of(Rows{{{1e9, 1e9}, {100, 100}}, {{100, 100}, {100, 100}}}), (Shares{1, 0.5}));
}

TEST(ShardWeights, NobodyIsLeftWithNothing) {
  EXPECT_EQ(weights_of(Rows{{{1e9, 1e9}, {1, 1}}}), (Shares{1, kLeastWeight}));
}

TEST(ShardWeights, RefuseWhatMakesNoSense) {
  const double infinite = std::numeric_limits<double>::infinity();
  for (const Rows& rows : {Rows{}, Rows{{}}, Rows{{{1, 1}}, {{1, 1}, {1, 1}}}, Rows{{{0, 1}}},
                           Rows{{{1, -1}}}, Rows{{{infinite, 1}}}}) {
    EXPECT_THROW(weights_of(rows), Error);
  }
}

}  // namespace
}  // namespace bimetal::parallel::server

#include "bimetal/parallel/server/shard_plan.h"

#include <gtest/gtest.h>

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

TEST(ShardPlan, OneServerHoldsAllInOrder) {
  const Sizes tensors{5, 0, 7};
  const auto plan = plan_shards(tensors, Weights{1}, 4);
  expect_whole(plan, tensors);
  EXPECT_EQ(plan.shard_elements, Sizes{12});
  EXPECT_EQ(plan.pieces.size(), 4u);
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

}  // namespace
}  // namespace bimetal::parallel::server

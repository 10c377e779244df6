#include "bimetal/parallel/server/shard_weights.h"

#include <gtest/gtest.h>

#include <limits>
#include <vector>

#include "bimetal/base/error.h"

namespace bimetal::parallel::server {
namespace {

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

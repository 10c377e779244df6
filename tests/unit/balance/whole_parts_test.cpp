#include "bimetal/balance/whole_parts.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <numeric>

#include "bimetal/base/error.h"

namespace bimetal::balance {
namespace {

using Parts = std::vector<std::int64_t>;

Parts parts_of(std::int64_t total, std::vector<double> weights) {
  return whole_parts(total, weights);
}

double slowest(const Parts& parts, const std::vector<double>& weights) {
  double slowest = 0;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    slowest = std::max(slowest, static_cast<double>(parts[i]) / weights[i]);
  }
  return slowest;
}

TEST(WholeParts, FollowTheWeights) {
  EXPECT_EQ(parts_of(12, {1, 1}), (Parts{6, 6}));
  EXPECT_EQ(parts_of(12, {2, 1}), (Parts{8, 4}));
  EXPECT_EQ(parts_of(12, {3, 1, 2}), (Parts{6, 2, 4}));
  EXPECT_EQ(parts_of(50257, {2, 1}), (Parts{33505, 16752}));
  EXPECT_EQ(parts_of(5, {1}), (Parts{5}));
}

TEST(WholeParts, EveryRankGetsOneAtLeast) {
  EXPECT_EQ(parts_of(2, {100, 1}), (Parts{1, 1}));
  EXPECT_EQ(parts_of(4, {1e-9, 1, 1e300}), (Parts{1, 1, 2}));
  EXPECT_EQ(parts_of(3, {1, 1000, 1}), (Parts{1, 1, 1}));
}

// No other way to give out so few pieces ends earlier.
TEST(WholeParts, TheSlowestEndsAsEarlyAsItCan) {
  for (const std::vector<double>& weights :
       {std::vector<double>{1, 1, 1}, {2, 1, 1}, {3, 1, 2}, {0.9, 1.1, 0.37}, {5, 1, 1}}) {
    for (std::int64_t total = 3; total <= 14; ++total) {
      double best = std::numeric_limits<double>::infinity();
      for (std::int64_t a = 1; a <= total - 2; ++a) {
        for (std::int64_t b = 1; a + b < total; ++b) {
          best = std::min(best, slowest({a, b, total - a - b}, weights));
        }
      }
      const auto parts = parts_of(total, weights);
      EXPECT_EQ(std::accumulate(parts.begin(), parts.end(), std::int64_t{0}), total);
      EXPECT_EQ(slowest(parts, weights), best) << total << " by " << weights[0];
    }
  }
}

TEST(WholeParts, WhatCannotBeIsRefused) {
  EXPECT_THROW(parts_of(1, {1, 1}), Error);
  EXPECT_THROW(parts_of(4, {}), Error);
  EXPECT_THROW(parts_of(4, {1, 0}), Error);
  EXPECT_THROW(parts_of(4, {1, -1}), Error);
  EXPECT_THROW(parts_of(4, {1, std::numeric_limits<double>::infinity()}), Error);
}

}  // namespace
}  // namespace bimetal::balance

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <numeric>
#include <random>
#include <vector>

#include "bimetal/balance/shares.h"
#include "bimetal/base/error.h"

namespace bimetal::balance {
namespace {

using ::testing::DoubleNear;
using ::testing::ElementsAre;

std::vector<double> parts_of(std::vector<double> rooms) {
  return ring_parts(rooms);
}

double sum(const std::vector<double>& numbers) {
  return std::accumulate(numbers.begin(), numbers.end(), 0.0);
}

/// The amount by which the fullest rank exceeds its room, with the copy of the one before it.
double excess(const std::vector<double>& rooms, const std::vector<double>& parts) {
  std::vector<std::size_t> ring;
  for (std::size_t rank = 0; rank < parts.size(); ++rank) {
    if (parts[rank] > 0) ring.push_back(rank);
  }
  double most = -1e300;
  for (std::size_t at = 0; at < ring.size(); ++at) {
    const double copied = ring.size() < 2 ? 0 : parts[ring[(at + ring.size() - 1) % ring.size()]];
    most = std::max(most, parts[ring[at]] + copied - rooms[ring[at]]);
  }
  return most;
}

TEST(RingParts, ASmallRankKeepsLittleAndCopiesLittle) {
  // In proportion to rooms, 3 : 3 : 1, the small one would keep its own and a copy of 3: 14 in all.
  EXPECT_THAT(parts_of({24, 24, 8}),
              ElementsAre(DoubleNear(20, 1e-6), DoubleNear(4, 1e-6), DoubleNear(4, 1e-6)));
}

TEST(RingParts, WhoCouldKeepNothingOfAnyUseIsLeftOut) {
  const auto parts = parts_of({24, 1, 24, 1, 24, 1});
  EXPECT_THAT(parts, ElementsAre(DoubleNear(12, 1e-6), 0, DoubleNear(12, 1e-6), 0,
                                 DoubleNear(12, 1e-6), 0));
}

TEST(RingParts, AlwaysFitAndAreNoLessThanThoseInProportion) {
  std::mt19937_64 random(3);
  std::uniform_real_distribution<double> draw(1, 40);
  for (int trial = 0; trial < 200; ++trial) {
    std::vector<double> rooms(2 + static_cast<std::size_t>(trial) % 7);
    for (auto& room : rooms) room = draw(random);
    const auto parts = ring_parts(rooms);
    EXPECT_LE(excess(rooms, parts), 1e-6);
    double fits = 1e300;  // of parts in proportion
    for (std::size_t rank = 0; rank < rooms.size(); ++rank) {
      const double before = rooms[(rank + rooms.size() - 1) % rooms.size()];
      fits = std::min(fits, rooms[rank] / (rooms[rank] + before));
    }
    EXPECT_GE(sum(parts), fits * sum(rooms) - 1e-6);
  }
}

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

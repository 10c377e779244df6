#include "bimetal/balance/ring_parts.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>
#include <random>
#include <vector>

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

/// By how much the fullest rank exceeds its room, with the copy of the one before it.
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

TEST(RingParts, EqualRanksKeepHalfOfTheirRoomEach) {
  for (const std::size_t ranks : {2, 3, 4, 5, 8}) {
    const auto parts = ring_parts(std::vector<double>(ranks, 10.0));
    for (const double part : parts) EXPECT_NEAR(part, 5, 1e-6) << ranks << " ranks";
  }
}

TEST(RingParts, OfTwoEachHasAllThatThereIs) {
  const auto parts = parts_of({30, 10});
  EXPECT_NEAR(sum(parts), 10, 1e-6);
  EXPECT_GT(std::min(parts[0], parts[1]), 0);
}

TEST(RingParts, WithoutRoomOnASecondRankNothingIsKept) {
  EXPECT_THAT(parts_of({0, 7, -1}), ElementsAre(0, 0, 0));
  EXPECT_THAT(parts_of({3}), ElementsAre(3));
  EXPECT_TRUE(parts_of({}).empty());
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

}  // namespace
}  // namespace bimetal::balance

#include "bimetal/balance/shares.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <random>

#include "support/errors.h"
#include "unit/balance/devices.h"

namespace bimetal::balance {
namespace {

using test::device;

std::int64_t sum(const Shares& shares) {
  return std::accumulate(shares.begin(), shares.end(), std::int64_t{0});
}

/// The least finish over every way to split `batch`, by trying them all.
double best_finish(const std::vector<Device>& devices, std::size_t first, std::int64_t batch) {
  const double infinity = std::numeric_limits<double>::infinity();
  if (first == devices.size()) return batch == 0 ? 0.0 : infinity;
  double best = infinity;
  for (std::int64_t b = 0; b <= std::min(batch, devices[first].cap); ++b) {
    const double own = b > 0 ? devices[first].cost.seconds(static_cast<double>(b)) : 0.0;
    best = std::min(best, std::max(own, best_finish(devices, first + 1, batch - b)));
  }
  return best;
}

TEST(BalancedShares, AreTheOptimumOfEverySplit) {
  std::mt19937_64 random(3);
  const auto pick = [&](std::vector<double> values) { return values[random() % values.size()]; };
  for (int trial = 0; trial < 1500; ++trial) {
    std::vector<Device> devices;
    std::int64_t room = 0;
    const std::size_t ranks = 1 + random() % 4;
    for (std::size_t r = 0; r < ranks; ++r) {
      const double alpha = pick({0.0, 0.0, 0.1, 1.0, 7.0, 100.0});
      const double beta = pick({0.0, 0.1, 1.0, 1.0, 3.0, 0.37});
      const auto cap = random() % 3 == 0 ? static_cast<std::int64_t>(random() % 12) : kNoCap;
      devices.push_back(device(alpha, alpha + beta > 0.0 ? beta : 1.0, cap));
      room += std::min<std::int64_t>(cap, 24);
    }
    const auto batch = static_cast<std::int64_t>(random() % 24);
    if (room < batch) continue;
    const Shares shares = balanced_shares(devices, batch);
    ASSERT_EQ(sum(shares), batch);
    for (std::size_t r = 0; r < ranks; ++r) {
      ASSERT_GE(shares[r], 0);
      ASSERT_LE(shares[r], devices[r].cap);
    }
    ASSERT_EQ(finish_seconds(devices, shares), best_finish(devices, 0, batch)) << trial;
  }
}

TEST(BalancedShares, RespectCaps) {
  EXPECT_EQ(balanced_shares(std::vector{device(0, 1, 30), device(0, 1)}, 100), (Shares{30, 70}));
  EXPECT_EQ(balanced_shares(std::vector{device(0, 1, 30), device(0, 1, 70)}, 100),
            (Shares{30, 70}));
  EXPECT_EQ(balanced_shares(std::vector{device(0, 1, 0), device(5, 5)}, 9), (Shares{0, 9}));
  EXPECT_EQ(code_of([] {
              balanced_shares(std::vector{device(0, 1, 30), device(0, 1, 69)}, 100);
            }),
            ErrorCode::OutOfMemory);
}

TEST(BalancedShares, TreatUnknownDevicesAsTypical) {
  EXPECT_EQ(balanced_shares(std::vector<Device>(3), 9), (Shares{3, 3, 3}));
  const std::vector devices{device(0, 1), device(0, 3), Device{}};
  const std::vector resolved{device(0, 1), device(0, 3), device(0, 2)};
  EXPECT_EQ(balanced_shares(devices, 110), balanced_shares(resolved, 110));
  EXPECT_EQ(finish_seconds(devices, Shares{0, 0, 10}), 20.0);
}

TEST(BalancedShares, OfNothingAreNothing) {
  EXPECT_EQ(balanced_shares(std::vector{device(0, 1), device(1, 1)}, 0), (Shares{0, 0}));
}

TEST(EqualShares, GiveTheRemainderToTheFirst) {
  EXPECT_EQ(equal_shares(3, 11), (Shares{4, 4, 3}));
  EXPECT_EQ(equal_shares(4, 2), (Shares{1, 1, 0, 0}));
  EXPECT_EQ(equal_shares(1, 0), (Shares{0}));
}

TEST(WeightedShares, AreProportionalWithTheLargestRemainderFirst) {
  EXPECT_EQ(weighted_shares(std::vector{3.0, 1.0}, 512), (Shares{384, 128}));
  EXPECT_EQ(weighted_shares(std::vector{1.0, 1.0, 1.0}, 2), (Shares{1, 1, 0}));
  EXPECT_EQ(weighted_shares(std::vector{0.7, 0.2, 0.1}, 8), (Shares{5, 2, 1}));
  EXPECT_EQ(weighted_shares(std::vector{1e300, 1e300}, 10), (Shares{5, 5}));
  EXPECT_EQ(weighted_shares(std::vector{0.0, 5e-324}, 10), (Shares{0, 10}));
}

TEST(WeightedShares, KeepTheSumAndTheZeros) {
  std::mt19937_64 random(5);
  for (int trial = 0; trial < 5000; ++trial) {
    std::vector<double> weights{1.0};
    for (std::size_t r = random() % 8; r > 0; --r) {
      weights.push_back(random() % 4 == 0 ? 0.0 : static_cast<double>(random() % 1000) / 7.0);
    }
    const auto batch = static_cast<std::int64_t>(random() % 10000);
    const Shares shares = weighted_shares(weights, batch);
    ASSERT_EQ(sum(shares), batch);
    const double total = std::accumulate(weights.begin(), weights.end(), 0.0);
    for (std::size_t r = 0; r < weights.size(); ++r) {
      ASSERT_LT(std::abs(static_cast<double>(shares[r]) -
                         weights[r] / total * static_cast<double>(batch)),
                1.0);
      ASSERT_TRUE(weights[r] > 0.0 || shares[r] == 0);
    }
  }
}

TEST(ScaleShares, KeepSumZerosOrderAndBounds) {
  std::mt19937_64 random(6);
  for (int trial = 0; trial < 5000; ++trial) {
    Shares shares{1 + static_cast<std::int64_t>(random() % 300)};
    for (std::size_t r = random() % 8; r > 0; --r) {
      shares.push_back(random() % 4 == 0 ? 0 : static_cast<std::int64_t>(random() % 300));
    }
    const auto batch =
        static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(sum(shares) + 1));
    const Shares scaled = scale_shares(shares, batch);
    ASSERT_EQ(sum(scaled), batch);
    for (std::size_t a = 0; a < shares.size(); ++a) {
      ASSERT_LE(scaled[a], shares[a]);
      ASSERT_GE(scaled[a], shares[a] * batch / sum(shares));
      for (std::size_t b = 0; b < shares.size(); ++b) {
        ASSERT_TRUE(shares[a] <= shares[b] || scaled[a] >= scaled[b]);
      }
    }
  }
}

TEST(ScaleShares, TakeTheLargestNumbersThereAre) {
  EXPECT_EQ(scale_shares(Shares{kMaxBatch - 1, 1}, kMaxBatch), (Shares{kMaxBatch - 1, 1}));
  EXPECT_EQ(scale_shares(Shares{0, 0}, 0), (Shares{0, 0}));
}

TEST(FinishSeconds, CountsOnlyDevicesWithWork) {
  const std::vector devices{device(1, 1), device(50, 1)};
  EXPECT_EQ(finish_seconds(devices, Shares{10, 0}), 11.0);
  EXPECT_EQ(finish_seconds(devices, Shares{10, 1}), 51.0);
  EXPECT_EQ(finish_seconds(devices, Shares{0, 0}), 0.0);
}

TEST(Shares, RefuseWhatCannotBe) {
  const std::vector two{device(0, 1), device(0, 1)};
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const auto invalid = ErrorCode::InvalidArgument;
  EXPECT_EQ(code_of([] { balanced_shares({}, 1); }), invalid);
  EXPECT_EQ(code_of([&] { balanced_shares(two, -1); }), invalid);
  EXPECT_EQ(code_of([&] { balanced_shares(two, kMaxBatch + 1); }), invalid);
  EXPECT_EQ(code_of([] { equal_shares(0, 1); }), invalid);
  EXPECT_EQ(code_of([] { equal_shares(2, -1); }), invalid);
  EXPECT_EQ(code_of([] { weighted_shares({}, 1); }), invalid);
  EXPECT_EQ(code_of([] { weighted_shares(std::vector{0.0, 0.0}, 1); }), invalid);
  EXPECT_EQ(code_of([] { weighted_shares(std::vector{1.0, -1.0}, 1); }), invalid);
  EXPECT_EQ(code_of([&] { weighted_shares(std::vector{1.0, nan}, 1); }), invalid);
  EXPECT_EQ(code_of([] { scale_shares({}, 1); }), invalid);
  EXPECT_EQ(code_of([] { scale_shares(Shares{0, 0}, 1); }), invalid);
  EXPECT_EQ(code_of([] { scale_shares(Shares{2, -1}, 1); }), invalid);
  EXPECT_EQ(code_of([&] { finish_seconds(two, Shares{1}); }), invalid);
}

using Weights = std::vector<std::int64_t>;

Weights loads_of(const std::vector<int>& ranks, const Weights& weights, std::size_t count) {
  Weights loads(count, 0);
  for (std::size_t item = 0; item < weights.size(); ++item) {
    loads[static_cast<std::size_t>(ranks[item])] += weights[item];
  }
  return loads;
}

/// When the last rank is through, each at a speed of its share.
double finish(const Weights& loads, const Shares& shares) {
  double last = 0.0;
  for (std::size_t rank = 0; rank < loads.size(); ++rank) {
    if (loads[rank] == 0) continue;
    last = std::max(last, static_cast<double>(loads[rank]) / static_cast<double>(shares[rank]));
  }
  return last;
}

/// The least finish over every way to deal out the items from `first` on, by trying them all.
double best_finish(const Weights& weights, std::size_t first, Weights& loads,
                   const Shares& shares) {
  if (first == weights.size()) return finish(loads, shares);
  double best = std::numeric_limits<double>::infinity();
  for (std::size_t rank = 0; rank < shares.size(); ++rank) {
    if (shares[rank] == 0) continue;
    loads[rank] += weights[first];
    best = std::min(best, best_finish(weights, first + 1, loads, shares));
    loads[rank] -= weights[first];
  }
  return best;
}

TEST(DealOut, IsNearTheOptimumOfEveryWay) {
  std::mt19937_64 random(5);
  double excess = 0.0;
  const int trials = 300;
  for (int trial = 0; trial < trials; ++trial) {
    const std::size_t ranks = 1 + random() % 3;
    Shares shares;
    for (std::size_t rank = 0; rank < ranks; ++rank) {
      shares.push_back(static_cast<std::int64_t>(random() % 5));
    }
    shares[random() % ranks] += 3;
    Weights weights;
    for (std::size_t item = 0; item < 8; ++item) {
      weights.push_back(static_cast<std::int64_t>(1 + random() % 50));
    }
    Weights none(ranks, 0);
    const auto owners = deal_out(weights, shares);
    ASSERT_EQ(owners.size(), weights.size());
    const Weights loads = loads_of(owners, weights, ranks);
    for (std::size_t rank = 0; rank < ranks; ++rank) {
      ASSERT_TRUE(shares[rank] > 0 || loads[rank] == 0);
    }
    const double ratio = finish(loads, shares) / best_finish(weights, 0, none, shares);
    ASSERT_LE(ratio, 2.0 * static_cast<double>(ranks) / static_cast<double>(ranks + 1) + 1e-12);
    excess += ratio - 1.0;
  }
  EXPECT_LT(excess / trials, 0.05);
}

TEST(DealOut, RefusesWhatCannotBe) {
  const Weights weights = {1, 2};
  EXPECT_EQ(code_of([&] { deal_out(weights, Shares{}); }), ErrorCode::InvalidArgument);
  EXPECT_EQ(code_of([&] { deal_out(weights, Shares{0, 0}); }), ErrorCode::InvalidArgument);
  EXPECT_EQ(code_of([&] { deal_out(weights, Shares{2, -1}); }), ErrorCode::InvalidArgument);
  EXPECT_EQ(code_of([&] { deal_out(Weights{1, -2}, Shares{1}); }), ErrorCode::InvalidArgument);
  EXPECT_TRUE(deal_out(Weights{}, Shares{1}).empty());
}

}  // namespace
}  // namespace bimetal::balance

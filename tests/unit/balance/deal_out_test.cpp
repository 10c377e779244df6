#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <numeric>
#include <random>

#include "bimetal/balance/shares.h"
#include "support/errors.h"

namespace bimetal::balance {
namespace {

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

TEST(DealOut, EqualItemsFollowTheSharesExactly) {
  for (const Shares& shares : {Shares{12, 4}, Shares{5, 0, 2, 9}, Shares{1, 1, 1}}) {
    const Weights weights(static_cast<std::size_t>(std::reduce(shares.begin(), shares.end())), 7);
    Shares counts(shares.size(), 0);
    for (const int rank : deal_out(weights, shares)) ++counts[static_cast<std::size_t>(rank)];
    EXPECT_EQ(counts, shares);
  }
}

TEST(DealOut, ManySamplesComeWithinAPercentOfTheShares) {
  std::mt19937_64 random(6);
  Weights weights;
  for (int item = 0; item < 256; ++item) {
    weights.push_back(static_cast<std::int64_t>(1 + random() % 500));
  }
  const Shares shares = {700, 200, 100};
  const Weights loads = loads_of(deal_out(weights, shares), weights, shares.size());
  const auto sum = static_cast<double>(std::reduce(loads.begin(), loads.end()));
  for (std::size_t rank = 0; rank < shares.size(); ++rank) {
    const double part = static_cast<double>(shares[rank]) / 1000.0;
    EXPECT_NEAR(static_cast<double>(loads[rank]) / sum / part, 1.0, 0.01) << rank;
  }
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

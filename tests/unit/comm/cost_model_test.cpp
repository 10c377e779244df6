#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "bimetal/comm/algorithm.h"
#include "bimetal/comm/algorithms/reduction.h"

namespace bimetal::comm {
namespace {

constexpr double kGigabit = 125e6;

double share(const std::vector<std::uint32_t>& weights, std::size_t rank) {
  return static_cast<double>(weights[rank]) / kWholeWeight;
}

TEST(Weights, NoOtherSharesAreFaster) {
  const std::vector<double> links = {10, 7, 8, 5};
  const auto time_of = [&](const std::vector<double>& shares) {
    double longest = 0;
    for (std::size_t r = 0; r < shares.size(); ++r) {
      longest = std::max(longest, (1 + 2 * shares[r]) / links[r]);
    }
    return longest;
  };
  const auto weights = weights_for(links);
  std::vector<double> best;
  for (std::size_t r = 0; r < links.size(); ++r) best.push_back(share(weights, r));
  EXPECT_NEAR(std::accumulate(best.begin(), best.end(), 0.0), 1, 1e-5);
  for (std::size_t from = 0; from < links.size(); ++from) {
    for (std::size_t to = 0; to < links.size(); ++to) {
      auto other = best;
      const double moved = std::min(0.05, other[from]);
      other[from] -= moved;
      other[to] += moved;
      EXPECT_GE(time_of(other), time_of(best) - 1e-6);
    }
  }
}

TEST(Counts, CoverEveryElementOnce) {
  for (const std::size_t count : {std::size_t{0}, std::size_t{1}, std::size_t{7},
                                  std::size_t{1000003}, std::size_t{1} << 40}) {
    for (const auto& weights : {std::vector<std::uint32_t>{1, 1, 1}, {0, 5, 0, 1}, {1048575, 1}}) {
      const auto counts = counts_for(weights, count);
      EXPECT_EQ(std::accumulate(counts.begin(), counts.end(), std::size_t{0}), count);
      for (std::size_t r = 0; r < weights.size(); ++r) {
        if (weights[r] == 0) {
          EXPECT_EQ(counts[r], 0u);
        }
      }
    }
  }
}

TEST(CostModel, LatencyChoosesShortOnesAndBytesLongOnes) {
  const Links links{100e-6, std::vector<double>(8, kGigabit)};
  const auto plan = plan_for(links);
  EXPECT_EQ(plan.choose(256), Algorithm::recursive_doubling);
  EXPECT_EQ(plan.choose(64 << 10), Algorithm::halving_doubling);
  EXPECT_EQ(plan.choose(64 << 20), Algorithm::ring);
  EXPECT_TRUE(plan.weights.empty());
}

TEST(CostModel, UnequalLinksGetWeights) {
  const auto plan = plan_for({100e-6, {kGigabit, kGigabit, kGigabit, kGigabit / 10}});
  EXPECT_EQ(plan.choose(16 << 20), Algorithm::weighted);
  ASSERT_EQ(plan.weights.size(), 4u);
  EXPECT_EQ(plan.weights[3], 0u);
}

// As docs/algorithms.md says of four ranks: an even ring moves 1.5 times as much over a slow link.
TEST(CostModel, PredictsTheBytesOfTheSlowLink) {
  const Links links{0, {1e9, 1e9, 1e9, 1e8}};
  EXPECT_NEAR(predicted_seconds(Algorithm::ring, 1e8, links), 1.5, 1e-6);
  EXPECT_NEAR(predicted_seconds(Algorithm::weighted, 1e8, links), 1.0, 1e-3);
}

TEST(CostModel, SmallDifferencesAreLeftAlone) {
  const auto plan = plan_for({100e-6, {kGigabit, kGigabit * 0.97, kGigabit * 1.02, kGigabit}});
  EXPECT_TRUE(plan.weights.empty());
}

}  // namespace
}  // namespace bimetal::comm

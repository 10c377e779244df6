#include "bimetal/data/sampler.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <random>
#include <set>

#include "bimetal/base/error.h"
#include "support/errors.h"

namespace bimetal::data {
namespace {

using Indices = std::vector<std::int64_t>;
using Shares = std::vector<std::int64_t>;

Indices first_samples(std::int64_t size) {
  Indices all(static_cast<std::size_t>(size));
  std::iota(all.begin(), all.end(), 0);
  return all;
}

/// The whole of the sampler's next epoch, in steps of `batch`.
Indices epoch_of(EpochSampler& sampler, std::int64_t batch = 1000) {
  Indices seen;
  do {
    const auto step = sampler.next(Shares{batch});
    seen.insert(seen.end(), step.indices.begin(), step.indices.end());
  } while (sampler.remaining() > 0);
  return seen;
}

Shares random_shares(std::mt19937_64& random, int ranks) {
  Shares shares;
  for (int rank = 0; rank < ranks; ++rank) {
    shares.push_back(random() % 3 == 0 ? 0 : static_cast<std::int64_t>(random() % 40));
  }
  if (std::all_of(shares.begin(), shares.end(), [](auto s) { return s == 0; })) shares[0] = 1;
  return shares;
}

TEST(EpochSampler, GroupsStayTogetherWhateverTheSharesDo) {
  std::mt19937_64 random(3);
  for (int trial = 0; trial < 100; ++trial) {
    const auto size = static_cast<std::int64_t>(1 + random() % 300);
    const auto group = static_cast<std::int64_t>(2 + random() % 9);
    EpochSampler sampler(size, 5, true, {}, group), alone(size, 5);
    do {
      const auto shares = random_shares(random, 3);
      const auto step = sampler.next(shares);
      // The same samples in the same order as without ranks: so are the groups that are cut from
      // it.
      ASSERT_EQ(step.indices, alone.next(Shares{step.total}).indices);
      ASSERT_EQ(std::accumulate(step.counts.begin(), step.counts.end(), 0), step.total);
      std::int64_t begin = 0;
      for (const auto count : step.counts) {
        if (count > 0) ASSERT_EQ(begin % group, 0);
        begin += count;
      }
    } while (sampler.remaining() > 0);
  }
}

TEST(EpochSampler, GroupsOfWeighedSamplesAreRefused) {
  EXPECT_EQ(code_of([] { EpochSampler(3, 1, true, {1, 2, 3}, 2); }), ErrorCode::InvalidArgument);
  EXPECT_EQ(code_of([] { EpochSampler(3, 1, true, {}, 0); }), ErrorCode::InvalidArgument);
}

TEST(EpochSampler, VisitsEachSampleExactlyOnceWhateverTheSharesDo) {
  std::mt19937_64 random(7);
  for (int trial = 0; trial < 200; ++trial) {
    const auto size = static_cast<std::int64_t>(1 + random() % 500);
    const int ranks = static_cast<int>(1 + random() % 5);
    EpochSampler sampler(size, random(), random() % 2 == 0);
    for (std::int64_t epoch = 0; epoch < 3; ++epoch) {
      Indices seen;
      do {
        const Shares shares = random_shares(random, ranks);
        const std::int64_t before = sampler.remaining();
        const auto step = sampler.next(shares);
        ASSERT_EQ(step.epoch, epoch);
        ASSERT_EQ(step.total, std::accumulate(step.counts.begin(), step.counts.end(), 0LL));
        ASSERT_EQ(step.total, static_cast<std::int64_t>(step.indices.size()));
        const std::int64_t asked = std::accumulate(shares.begin(), shares.end(), 0LL);
        ASSERT_EQ(step.total, std::min(asked, before > 0 ? before : size));
        for (int rank = 0; rank < ranks; ++rank) {
          const auto part = step.of_rank(rank);
          ASSERT_LE(static_cast<std::int64_t>(part.size()), shares[static_cast<std::size_t>(rank)]);
          seen.insert(seen.end(), part.begin(), part.end());
        }
      } while (sampler.remaining() > 0);
      std::sort(seen.begin(), seen.end());
      ASSERT_EQ(seen, first_samples(size));
    }
  }
}

TEST(EpochSampler, EachSeedAndEpochHasItsOwnOrder) {
  std::set<Indices> orders;
  for (const std::uint64_t seed : {0ULL, 1ULL, 1ULL << 32, ~0ULL}) {
    EpochSampler sampler(100, seed);
    for (int epoch = 0; epoch < 4; ++epoch) orders.insert(epoch_of(sampler));
  }
  EXPECT_EQ(orders.size(), 16u);
}

TEST(EpochSampler, WithoutShufflingTheOrderIsTheDatasets) {
  EpochSampler sampler(50, 3, /*shuffle=*/false);
  EXPECT_EQ(epoch_of(sampler), first_samples(50));
  EXPECT_EQ(epoch_of(sampler), first_samples(50));
}

/// Every platform must draw this order: a job may resume on another kind of machine.
TEST(EpochSampler, TheOrderIsThisOne) {
  EpochSampler sampler(8, 42);
  EXPECT_EQ(epoch_of(sampler), (Indices{7, 2, 4, 5, 1, 0, 3, 6}));
  EXPECT_EQ(epoch_of(sampler), (Indices{3, 4, 1, 2, 5, 0, 7, 6}));
}

TEST(EpochSampler, ShufflesUniformly) {
  // Each of the 6 orders of 3 samples comes up in 1/6 of 6,000 epochs; 5 standard deviations.
  std::map<Indices, int> counts;
  EpochSampler sampler(3, 11);
  for (int epoch = 0; epoch < 6000; ++epoch) ++counts[epoch_of(sampler)];
  ASSERT_EQ(counts.size(), 6u);
  for (const auto& [order, count] : counts) EXPECT_NEAR(count, 1000, 145);
}

TEST(EpochSampler, ResumesInTheMiddleOfAnEpoch) {
  const Shares shares = {30, 10};
  EpochSampler whole(1000, 9);
  for (int step = 0; step < 40; ++step) {
    const SamplerPosition position = whole.position();
    EpochSampler resumed(1000, 9);
    resumed.seek(position);
    ASSERT_EQ(resumed.position(), position);
    ASSERT_EQ(resumed.remaining(), whole.remaining());
    const auto expected = whole.next(shares);
    const auto actual = resumed.next(shares);
    ASSERT_EQ(actual.epoch, expected.epoch);
    ASSERT_EQ(actual.counts, expected.counts);
    ASSERT_EQ(actual.indices, expected.indices);
  }
  EXPECT_EQ(whole.position(), (SamplerPosition{1, 600}));
}

TEST(EpochSampler, RepeatsAStepWithOtherShares) {
  EpochSampler sampler(100, 4);
  sampler.next(Shares{30, 30});
  const SamplerPosition before = sampler.position();
  const auto first = sampler.next(Shares{20, 10});
  sampler.seek(before);
  const auto again = sampler.next(Shares{5, 25});
  EXPECT_EQ(again.indices, first.indices);
  EXPECT_EQ(again.counts, (Shares{5, 25}));
}

TEST(EpochSampler, DealsEverySampleOutOnceByWeight) {
  std::mt19937_64 random(8);
  std::vector<std::int64_t> weights(203);
  for (auto& weight : weights) weight = static_cast<std::int64_t>(1 + random() % 100);
  EpochSampler sampler(203, 3, true, weights), plain(203, 3);
  for (std::int64_t epoch = 0; epoch < 3; ++epoch) {
    Indices seen;
    do {
      const Shares shares = random_shares(random, 3);
      const auto step = sampler.deal(shares, 32);
      ASSERT_EQ(step.epoch, epoch);
      // The same samples as any other shares would have given this step.
      Indices drawn = step.indices, expected = plain.next(Shares{32}).indices;
      std::sort(drawn.begin(), drawn.end());
      std::sort(expected.begin(), expected.end());
      ASSERT_EQ(drawn, expected);
      for (int rank = 0; rank < 3; ++rank) {
        const auto part = step.of_rank(rank);
        const auto r = static_cast<std::size_t>(rank);
        ASSERT_TRUE(shares[r] > 0 || part.empty());
        std::int64_t sum = 0;
        for (const auto index : part) sum += weights[static_cast<std::size_t>(index)];
        ASSERT_EQ(step.weights[r], sum);
        seen.insert(seen.end(), part.begin(), part.end());
      }
    } while (sampler.remaining() > 0);
    std::sort(seen.begin(), seen.end());
    ASSERT_EQ(seen, first_samples(203));
  }
}

TEST(EpochSampler, RefusesWhatCannotBe) {
  EXPECT_EQ(code_of([] { EpochSampler(0, 1); }), ErrorCode::InvalidArgument);
  EXPECT_EQ(code_of([] { EpochSampler(3, 1, true, {1, 2}); }), ErrorCode::InvalidArgument);
  EXPECT_EQ(code_of([] { EpochSampler(2, 1, true, {1, 0}); }), ErrorCode::InvalidArgument);
  EpochSampler sampler(10, 1);
  EXPECT_EQ(code_of([&] { sampler.next({}); }), ErrorCode::InvalidArgument);
  EXPECT_EQ(code_of([&] { sampler.next(Shares{0, 0}); }), ErrorCode::InvalidArgument);
  EXPECT_EQ(code_of([&] { sampler.next(Shares{5, -1}); }), ErrorCode::InvalidArgument);
  EXPECT_EQ(code_of([&] { sampler.deal(Shares{5, 5}, 0); }), ErrorCode::InvalidArgument);
  EXPECT_EQ(code_of([&] { sampler.seek({0, 11}); }), ErrorCode::InvalidArgument);
  EXPECT_EQ(code_of([&] { sampler.seek({-1, 0}); }), ErrorCode::InvalidArgument);
  EXPECT_EQ(code_of([&] { sampler.next(Shares{5, 5}).of_rank(2); }), ErrorCode::InvalidArgument);
  EXPECT_EQ(sampler.position(), (SamplerPosition{0, 10}));
}

}  // namespace
}  // namespace bimetal::data

#include "bimetal/balance/balancer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <utility>
#include <vector>

#include "support/errors.h"
#include "unit/balance/devices.h"

namespace bimetal::balance {
namespace {

using test::device;
using testing::HasSubstr;

/// Figures of a step in which each rank took `seconds_per_sample[r]` for each of its samples.
std::vector<StepFigures> figures_of(const Shares& shares,
                                    const std::vector<double>& seconds_per_sample) {
  std::vector<StepFigures> figures;
  for (std::size_t r = 0; r < shares.size(); ++r) {
    figures.push_back({shares[r], static_cast<double>(shares[r]) * seconds_per_sample[r], false});
  }
  return figures;
}

std::vector<StepFigures> out_of_memory(const Shares& shares, std::size_t rank) {
  auto figures = figures_of(shares, std::vector<double>(shares.size(), 1e-3));
  figures[rank].out_of_memory = true;
  return figures;
}

BalancerOptions options(std::int64_t global_batch, Policy policy = Policy::Auto,
                        std::vector<double> weights = {}) {
  BalancerOptions options;
  options.global_batch = global_batch;
  options.policy = policy;
  options.fixed_weights = std::move(weights);
  return options;
}

TEST(Balancer, BeginsWithSharesByItsPolicy) {
  const std::vector devices{device(0, 1), device(0, 4)};
  EXPECT_EQ(Balancer(options(500), devices).shares(), (Shares{400, 100}));
  EXPECT_EQ(Balancer(options(500, Policy::Equal), devices).shares(), (Shares{250, 250}));
  EXPECT_EQ(Balancer(options(500, Policy::Fixed, {1, 9}), devices).shares(), (Shares{50, 450}));
  EXPECT_EQ(Balancer(options(500), std::vector<Device>(2)).shares(), (Shares{250, 250}));
}

TEST(Balancer, OtherPoliciesNeverMove) {
  for (const Policy policy : {Policy::Equal, Policy::Fixed}) {
    Balancer balancer(options(100, policy, {1, 1}), std::vector<Device>(2));
    for (int step = 0; step < 100; ++step) {
      EXPECT_FALSE(balancer.observe(figures_of(balancer.shares(), {1e-3, 1e-1})));
    }
    EXPECT_EQ(balancer.shares(), (Shares{50, 50}));
    EXPECT_NEAR(balancer.alone_rate(0), 1000, 1) << "it learns nevertheless";
  }
}

TEST(Balancer, IgnoresWarmUp) {
  BalancerOptions with_warmup = options(100);
  with_warmup.warmup_steps = 3;
  Balancer balancer(with_warmup, {device(0, 1e-3), device(0, 1e-3)});
  for (int step = 0; step < 3; ++step) {
    EXPECT_FALSE(balancer.observe(figures_of(balancer.shares(), {1e-3, 5e-1})));
  }
  EXPECT_EQ(balancer.devices()[1].cost.beta(), 1e-3);
}

TEST(Balancer, EqualCallsGiveEqualShares) {
  Balancer a(options(600), std::vector<Device>(2)), b = a;
  for (int step = 0; step < 200; ++step) {
    const double slow = step % 50 < 25 ? 4e-3 : 2e-3;
    a.observe(figures_of(a.shares(), {1e-3, slow}));
    b.observe(figures_of(b.shares(), {1e-3, slow}));
    ASSERT_EQ(a.shares(), b.shares());
  }
}

TEST(Balancer, ASmallGainIsTakenInTheEnd) {
  Balancer balancer(options(5000), {device(0, 1e-3), device(0, 1e-3)});
  for (int step = 0; step < 100; ++step) {
    balancer.observe(figures_of(balancer.shares(), {1e-3, 1.02e-3}));  // 1 % sooner
  }
  EXPECT_GT(balancer.shares()[0], 2505);
}

TEST(Balancer, OutOfMemoryHalvesTheShareAtOnceUnderAnyPolicy) {
  for (const Policy policy : {Policy::Auto, Policy::Equal, Policy::Fixed}) {
    Balancer balancer(options(400, policy, {1, 1}), {device(0, 1e-3), device(0, 1e-3)});
    ASSERT_EQ(balancer.shares(), (Shares{200, 200}));
    EXPECT_TRUE(balancer.observe(out_of_memory(balancer.shares(), 1)));
    EXPECT_EQ(balancer.shares(), (Shares{300, 100}));
    EXPECT_EQ(balancer.devices()[1].cap, 100);
    EXPECT_TRUE(balancer.observe(out_of_memory(balancer.shares(), 1)));
    EXPECT_EQ(balancer.shares(), (Shares{350, 50}));
    for (int step = 0; step < 50; ++step) {
      balancer.observe(figures_of(balancer.shares(), {1e-3, 1e-5}));
      ASSERT_LE(balancer.shares()[1], 50) << "the cap stays";
    }
  }
}

TEST(Balancer, NothingIsLearntFromAFailedStep) {
  Balancer balancer(options(400), {device(0, 1e-3), device(0, 1e-3)});
  for (int step = 0; step < 20; ++step) {
    balancer.observe(figures_of(balancer.shares(), {1e-3, 1e-3}));
  }
  auto figures = out_of_memory(balancer.shares(), 1);
  figures[0].compute_seconds = 100;
  const double before = balancer.devices()[0].cost.seconds(100);
  balancer.observe(figures);
  EXPECT_EQ(balancer.devices()[0].cost.seconds(100), before);
}

TEST(Balancer, AFixedShareOfNothingStaysNothing) {
  Balancer balancer(options(90, Policy::Fixed, {1, 0, 1}), std::vector<Device>(3));
  balancer.observe(out_of_memory(balancer.shares(), 0));
  EXPECT_EQ(balancer.shares(), (Shares{22, 0, 68}));
}

TEST(Balancer, ARankThatFitsNothingIsLeftOutWhereOthersCanTakeItsPart) {
  Balancer balancer(options(3), {device(0, 1e-3), device(0, 1e-3)});
  const std::size_t unlucky = balancer.shares()[0] == 1 ? 0 : 1;
  ASSERT_EQ(balancer.shares()[unlucky], 1);
  EXPECT_TRUE(balancer.observe(out_of_memory(balancer.shares(), unlucky)));
  EXPECT_EQ(balancer.shares()[unlucky], 0);
  EXPECT_EQ(balancer.shares()[1 - unlucky], 3);
}

TEST(Balancer, NamesTheRankWhosePartNobodyCanTake) {
  Balancer balancer(options(100), {device(0, 1e-3, 60), device(0, 1e-3, 60)});
  const auto error = error_of([&] { balancer.observe(out_of_memory(balancer.shares(), 1)); });
  ASSERT_TRUE(error);
  EXPECT_EQ(error->code(), ErrorCode::OutOfMemory);
  EXPECT_EQ(error->rank(), 1);
  EXPECT_THAT(error->what(), HasSubstr("rank 1 ran out of memory with 50 samples"));

  Balancer alone(options(100), {device(0, 1e-3)});
  EXPECT_EQ(code_of([&] { alone.observe(out_of_memory(alone.shares(), 0)); }),
            ErrorCode::OutOfMemory);
}

TEST(Balancer, AnIdleRankIsJudgedByItsProbeAgainAfterLong) {
  Balancer balancer(options(200), {device(0, 1e-3), device(0.01, 1e-3)});
  const auto figures = [&](bool hindered) {
    const auto& shares = balancer.shares();
    auto figures = figures_of(shares, {1e-3, 1e-3});
    if (shares[1] > 0) figures[1].compute_seconds += hindered ? 5.0 : 0.01;
    return figures;
  };
  for (int step = 0; step < 100; ++step) balancer.observe(figures(true));
  ASSERT_EQ(balancer.shares()[1], 0) << "5 s to begin are too long";
  int computed = 0;
  for (int step = 0; step < 400; ++step) {
    balancer.observe(figures(true));
    computed += balancer.shares()[1] > 0 ? 1 : 0;
  }
  EXPECT_GT(computed, 0);
  EXPECT_LT(computed, 30) << "trying again must stay rare";
  for (int step = 0; step < 300; ++step) balancer.observe(figures(false));
  EXPECT_NEAR(static_cast<double>(balancer.shares()[1]), 95, 5);
}

/// Rank 1 takes `seconds` a step whatever it computes; shadows are measured when asked for.
std::vector<StepFigures> figures_with_shadow(const Balancer& balancer, double seconds) {
  auto figures = figures_of(balancer.shares(), {1e-3, 1e-3});
  if (balancer.shares()[1] > 0) figures[1].compute_seconds += seconds;
  const auto shadow = balancer.shadows()[1];
  if (shadow == 0) return figures;
  figures[1].shadow_batch = shadow;
  figures[1].shadow_seconds = seconds + 1e-3 * static_cast<double>(shadow);
  return figures;
}

TEST(Balancer, LeavesARankOutOnRepeatedEvidenceOfSmallBatchesOnly) {
  Balancer balancer(options(200), {device(0, 1e-3), device(0.01, 1e-3)});
  for (int step = 0; step < 20; ++step) balancer.observe(figures_with_shadow(balancer, 0.01));
  int small = 0;
  for (int step = 0; step < 40 && balancer.shares()[1] > 0; ++step) {
    small += balancer.shares()[1] <= 12 ? 1 : 0;
    balancer.observe(figures_with_shadow(balancer, 5.0));
  }
  EXPECT_EQ(balancer.shares()[1], 0);
  EXPECT_GE(small, 3);
}

TEST(Balancer, AnIdleRankMeasuresItselfAndComesBackWhenItIsWorthIt) {
  Balancer balancer(options(200), {device(0, 1e-3), device(0.01, 1e-3)});
  for (int step = 0; step < 60; ++step) balancer.observe(figures_with_shadow(balancer, 5.0));
  ASSERT_EQ(balancer.shares()[1], 0);
  for (int step = 0; step < 15; ++step) balancer.observe(figures_with_shadow(balancer, 0.01));
  EXPECT_NEAR(static_cast<double>(balancer.shares()[1]), 95, 10);
}

TEST(Balancer, ShadowsBecomeRareWhereTheyShowNothingNew) {
  Balancer balancer(options(200), {device(0, 1e-3), device(5.0, 1e-3)});
  ASSERT_EQ(balancer.shares()[1], 0);
  int shadows = 0;
  for (int step = 0; step < 1000; ++step) {
    shadows += balancer.shadows()[1] > 0 ? 1 : 0;
    EXPECT_EQ(balancer.shadows()[0], 0) << "it has work";
    balancer.observe(figures_with_shadow(balancer, 5.0));
  }
  EXPECT_EQ(balancer.shares()[1], 0);
  EXPECT_GE(shadows, 1000 / 50);
  EXPECT_LE(shadows, 60);
}

TEST(Balancer, NoShadowsWhereSharesDoNotFollow) {
  Balancer balancer(options(90, Policy::Fixed, {1, 0}), std::vector<Device>(2));
  for (int step = 0; step < 300; ++step) {
    ASSERT_EQ(balancer.shadows(), (Shares{0, 0}));
    balancer.observe(figures_of(balancer.shares(), {1e-3, 1e-3}));
  }
}

TEST(Balancer, OneRankAloneHasEverything) {
  Balancer balancer(options(64), std::vector<Device>(1));
  for (int step = 0; step < 50; ++step) {
    EXPECT_FALSE(balancer.observe(figures_of(balancer.shares(), {step % 2 ? 1e-3 : 2e-3})));
  }
  EXPECT_EQ(balancer.shares(), (Shares{64}));
}

TEST(Balancer, RefusesWhatCannotBe) {
  const auto invalid = ErrorCode::InvalidArgument;
  const std::vector<Device> two(2);
  EXPECT_EQ(code_of([&] { Balancer(options(10), {}); }), invalid);
  EXPECT_EQ(code_of([&] { Balancer(options(0), two); }), invalid);
  EXPECT_EQ(code_of([&] { Balancer(options(10, Policy::Fixed, {1}), two); }), invalid);
  EXPECT_EQ(code_of([&] { Balancer(options(10, Policy::Fixed, {0, 0}), two); }), invalid);
  EXPECT_EQ(code_of([&] {
              Balancer(options(10), {device(0, 1, 4), device(0, 1, 5)});
            }),
            ErrorCode::OutOfMemory);
  Balancer balancer(options(10), two);
  EXPECT_EQ(code_of([&] { balancer.observe(std::vector<StepFigures>(3)); }), invalid);
}

}  // namespace
}  // namespace bimetal::balance

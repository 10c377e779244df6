#include "bimetal/balance/cost_model.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>

#include "support/errors.h"
#include "unit/balance/simulation.h"

namespace bimetal::balance {
namespace {

using test::uniform;

TEST(CostModel, KnowsNothingAtFirst) {
  const CostModel model;
  EXPECT_FALSE(model.known());
  EXPECT_EQ(model.rate(100), 0.0);
}

TEST(CostModel, PredictsFromItsProbe) {
  const CostModel model(0.1, 0.002);
  EXPECT_TRUE(model.known());
  EXPECT_DOUBLE_EQ(model.seconds(50), 0.2);
  EXPECT_DOUBLE_EQ(model.rate(50), 250.0);
  EXPECT_EQ(model.rate(0), 0.0);
}

TEST(CostModel, RefusesProbesThatCannotBe) {
  const double infinity = std::numeric_limits<double>::infinity();
  EXPECT_EQ(code_of([] { CostModel(-0.1, 1.0); }), ErrorCode::InvalidArgument);
  EXPECT_EQ(code_of([] { CostModel(0.0, 0.0); }), ErrorCode::InvalidArgument);
  EXPECT_EQ(code_of([&] { CostModel(0.0, infinity); }), ErrorCode::InvalidArgument);
  EXPECT_EQ(code_of([] { CostModel(std::nan(""), 1.0); }), ErrorCode::InvalidArgument);
}

TEST(CostModel, TakesItsFirstObservationWithoutAProbe) {
  CostModel model;
  model.observe(50, 0.5);
  EXPECT_TRUE(model.known());
  EXPECT_DOUBLE_EQ(model.seconds(100), 1.0);
}

TEST(CostModel, IgnoresWhatIsNoObservation) {
  CostModel model(0.1, 0.002);
  model.observe(0, 1.0);
  model.observe(-5, 1.0);
  model.observe(10, 0.0);
  model.observe(10, -1.0);
  model.observe(10, std::nan(""));
  model.observe(10, std::numeric_limits<double>::infinity());
  EXPECT_EQ(model.alpha(), 0.1);
  EXPECT_EQ(model.beta(), 0.002);
}

TEST(CostModel, StaysWhereObservationsAgreeWithIt) {
  CostModel model(0.05, 0.001);
  for (int i = 0; i < 500; ++i) model.observe(200, 0.25);
  EXPECT_NEAR(model.alpha(), 0.05, 1e-9);
  EXPECT_NEAR(model.beta(), 0.001, 1e-12);
}

TEST(CostModel, KeepsTheProbesProportionsWhileBatchesAreAlike) {
  CostModel model(0.05, 0.001);
  for (int i = 0; i < 500; ++i) model.observe(200, 0.3);  // 1.2 times as long
  EXPECT_NEAR(model.alpha(), 1.2 * 0.05, 1e-6);
  EXPECT_NEAR(model.beta(), 1.2 * 0.001, 1e-8);
}

/// α's part of the time for 40 samples.
double constant_part(const CostModel& model) {
  return model.alpha() / model.seconds(40);
}

// Batches of one size say nothing of the proportion of α to β, however much their times vary.
TEST(CostModel, JitterAtOneBatchSizeSaysNothingOfTheShape) {
  std::mt19937_64 random(6);
  CostModel model(0.004, 0.001);
  const double before = constant_part(model);
  for (int i = 0; i < 500; ++i) model.observe(40, 0.044 * std::exp(uniform(random, -0.5, 1.5)));
  EXPECT_NEAR(constant_part(model), before, 1e-9);
}

// A balancer gives a slower device smaller batches: small ones then take as long as large ones did.
TEST(CostModel, ADisturbanceIsNoCostPerStep) {
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    std::mt19937_64 random(seed);
    CostModel model(0.004, 0.001);
    const auto observe = [&](int batch, double factor) {
      model.observe(batch, factor * (0.004 + 0.001 * batch) * uniform(random, 0.97, 1.03));
    };
    for (int i = 0; i < 50; ++i) observe(60, 1.0);
    for (int batch = 60; batch > 30; --batch) observe(batch, 60.0 / batch);
    EXPECT_LT(constant_part(model), 0.3) << seed;
  }
}

// What was known of the device before is still true when the disturbance has passed.
TEST(CostModel, KnowsItsOldSpeedAgainAfterADisturbance) {
  std::mt19937_64 random(7);
  CostModel model(0.004, 0.001);
  const auto observe = [&](double factor) {
    model.observe(40, factor * 0.044 * uniform(random, 0.97, 1.03));
  };
  for (int i = 0; i < 100; ++i) observe(1.0);
  const double noise = model.noise();
  for (int i = 0; i < 30; ++i) observe(uniform(random, 1.5, 3.5));
  EXPECT_GT(model.noise(), 3 * noise);
  for (int i = 0; i < 4; ++i) observe(1.0);
  EXPECT_NEAR(model.seconds(40), 0.044, 0.02 * 0.044);
  EXPECT_LT(model.noise(), 2 * noise);
}

TEST(CostModel, FindsBothParametersWhenBatchesVary) {
  std::mt19937_64 random(1);
  CostModel model(0.0, 0.002);  // a probe that missed the constant part
  for (int i = 0; i < 300; ++i) {
    const auto batch = static_cast<std::int64_t>(uniform(random, 50, 350));
    model.observe(batch, (0.1 + 0.001 * static_cast<double>(batch)) * uniform(random, 0.97, 1.03));
  }
  EXPECT_NEAR(model.alpha(), 0.1, 0.015);
  EXPECT_NEAR(model.beta(), 0.001, 0.0001);
}

TEST(CostModel, ParametersAreNeverNegative) {
  std::mt19937_64 random(2);
  for (int trial = 0; trial < 200; ++trial) {
    CostModel model(uniform(random, 0, 1), uniform(random, 1e-4, 1));
    for (int i = 0; i < 200; ++i) {
      model.observe(static_cast<std::int64_t>(1 + random() % 300),
                    std::exp(uniform(random, -12, 6)));
      ASSERT_GE(model.alpha(), 0.0);
      ASSERT_GE(model.beta(), 0.0);
      ASSERT_TRUE(std::isfinite(model.alpha()) && std::isfinite(model.beta()));
      ASSERT_GT(model.seconds(1), 0.0);
    }
  }
}

TEST(CostModel, OutliersHardlyMoveIt) {
  for (const double outlier : {10.0, 1000.0, 0.1}) {
    CostModel model(0.0, 0.001);
    for (int i = 0; i < 100; ++i) {
      // Two in a row, now and then.
      model.observe(200, i % 25 == 20 || i % 25 == 21 ? 0.2 * outlier : 0.2);
      EXPECT_NEAR(model.seconds(200), 0.2, 0.05 * 0.2) << outlier << " at " << i;
    }
  }
}

TEST(CostModel, FollowsALastingChangeWithinAFewObservations) {
  for (const double factor : {2.0, 0.5, 10.0, 0.1, 1.5}) {
    std::mt19937_64 random(3);
    CostModel model(0.02, 0.001);
    const auto time = [&] { return 0.22 * uniform(random, 0.9, 1.1); };
    for (int i = 0; i < 300; ++i) model.observe(200, time());
    for (int i = 0; i < 8; ++i) model.observe(200, factor * time());
    EXPECT_NEAR(model.seconds(200) / (0.22 * factor), 1.0, 0.06) << factor;
  }
}

TEST(CostModel, FollowsASlowDrift) {
  std::mt19937_64 random(4);
  CostModel model(0.0, 0.001);
  double truth = 0.2;
  for (int i = 0; i < 400; ++i) {
    truth *= 1.001;
    model.observe(200, truth * uniform(random, 0.95, 1.05));
  }
  EXPECT_NEAR(model.seconds(200) / truth, 1.0, 0.06);
}

TEST(CostModel, LearnsItsNoise) {
  std::mt19937_64 random(5);
  CostModel model(0.0, 0.001);
  for (int i = 0; i < 300; ++i) model.observe(200, 0.2 * uniform(random, 0.8, 1.2));
  EXPECT_NEAR(model.noise(), 0.1, 0.03);  // the mean of |uniform ±20 %|
  EXPECT_LT(model.uncertainty(), 0.03);
  EXPECT_NEAR(model.seconds(200), 0.2, 0.01);
}

TEST(CostModel, IsUnsettledOnlyWhileObservationsContradictIt) {
  CostModel model(0.0, 0.001);
  for (int i = 0; i < 50; ++i) model.observe(200, 0.2);
  EXPECT_FALSE(model.unsettled());
  model.observe(200, 0.4);
  model.observe(200, 0.4);
  EXPECT_TRUE(model.unsettled());
  for (int i = 0; i < 6; ++i) model.observe(200, 0.4);
  EXPECT_FALSE(model.unsettled());
}

}  // namespace
}  // namespace bimetal::balance

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

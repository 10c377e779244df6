// The product's first promise: however a global batch is shared out, the training is the one that a
// single worker would have done.

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <ostream>
#include <string>
#include <tuple>
#include <vector>

#include "golden/training_run.h"

namespace bimetal::golden {

void PrintTo(Optimizer optimizer, std::ostream* out) {
  switch (optimizer) {
    case Optimizer::sgd_momentum: *out << "Sgd"; break;
    case Optimizer::adam: *out << "Adam"; break;
    case Optimizer::lars: *out << "Lars"; break;
    case Optimizer::lamb: *out << "Lamb"; break;
  }
}

namespace {

using Shares = std::vector<std::vector<std::int64_t>>;

// 200 samples in batches of 24: each epoch's ninth and last step has 8.
const Shares one_worker = {{24}};

struct Case {
  std::string name;
  Shares shares;
  std::int64_t micro_batch = 1000;
};

void PrintTo(const Case& shared, std::ostream* out) {
  *out << shared.name;
}

// A zero share never sits still, so that each rank also comes back from one.
const Case cases[] = {
    {"TwoWorkers", {{17, 7}}},
    {"TwoWorkersOneAtRest", {{24, 0}, {5, 19}, {0, 24}}},
    {"ThreeWorkers", {{13, 11, 0}, {0, 23, 1}, {8, 8, 8}}},
    {"FiveWorkersInMicroBatches", {{11, 6, 4, 3, 0}, {0, 1, 2, 9, 12}}, 4},
};

TrainingPlan plan_of(const Case& shared, torch::ScalarType dtype, Optimizer optimizer) {
  return {.dtype = dtype,
          .optimizer = optimizer,
          .shares = shared.shares,
          .micro_batch = shared.micro_batch};
}

// The largest difference within a tensor, relative to its largest value.
double relative_difference(const torch::Tensor& a, const torch::Tensor& b) {
  const auto scale = b.abs().max().item<double>();
  return (a - b).abs().max().item<double>() / scale;
}

class SampleExact : public ::testing::TestWithParam<std::tuple<Case, Optimizer>> {};

TEST_P(SampleExact, ParametersAgreeInDouble) {
  const auto& [shared, optimizer] = GetParam();
  const auto alone = train({.optimizer = optimizer, .shares = one_worker});
  const auto together = train(plan_of(shared, torch::kFloat64, optimizer));
  ASSERT_EQ(alone.parameters.size(), together.parameters.size());
  for (std::size_t i = 0; i < alone.parameters.size(); ++i) {
    EXPECT_LE(relative_difference(together.parameters[i], alone.parameters[i]), 1e-12)
        << "parameter " << i;
  }
}

TEST_P(SampleExact, LossCurveAgreesInFloat) {
  const auto& [shared, optimizer] = GetParam();
  const auto alone =
      train({.dtype = torch::kFloat32, .optimizer = optimizer, .shares = one_worker});
  const auto together = train(plan_of(shared, torch::kFloat32, optimizer));
  ASSERT_EQ(together.losses.size(), alone.losses.size());
  for (std::size_t step = 0; step < alone.losses.size(); ++step) {
    EXPECT_NEAR(together.losses[step] / alone.losses[step], 1, 1e-5) << "step " << step;
  }
}

INSTANTIATE_TEST_SUITE_P(Shares, SampleExact,
                         ::testing::Combine(::testing::ValuesIn(cases),
                                            ::testing::Values(Optimizer::sgd_momentum,
                                                              Optimizer::adam, Optimizer::lars,
                                                              Optimizer::lamb)),
                         [](const auto& param) {
                           return std::get<0>(param.param).name +
                                  ::testing::PrintToString(std::get<1>(param.param));
                         });

/// How gradients are limited before the update.
struct Limits {
  std::string name;
  optim::GradientLimits limits;
};

void PrintTo(const Limits& limits, std::ostream* out) {
  *out << limits.name;
}

class ClippedExact : public ::testing::TestWithParam<std::tuple<Case, Limits>> {};

// The norm is that of the mean over all ranks' samples, whatever the micro-batches.
TEST_P(ClippedExact, ParametersAgreeInDouble) {
  const auto& [shared, how] = GetParam();
  const auto alone = train({.shares = one_worker, .update = {.limits = how.limits}});
  auto plan = plan_of(shared, torch::kFloat64, Optimizer::sgd_momentum);
  plan.update.limits = how.limits;
  const auto together = train(plan);
  const auto free = train({.shares = one_worker});
  EXPECT_GT(relative_difference(alone.parameters[0], free.parameters[0]), 1e-3) << "never clipped";
  for (std::size_t i = 0; i < alone.parameters.size(); ++i) {
    EXPECT_LE(relative_difference(together.parameters[i], alone.parameters[i]), 1e-12)
        << "parameter " << i;
  }
}

INSTANTIATE_TEST_SUITE_P(
    Shares, ClippedExact,
    ::testing::Combine(::testing::ValuesIn(cases),
                       ::testing::Values(Limits{"Norm", {.norm = 0.5}},
                                         Limits{"Value", {.value = 0.01}},
                                         Limits{"Both", {.norm = 0.2, .value = 0.02}})),
    [](const auto& param) {
      return std::get<0>(param.param).name + std::get<1>(param.param).name;
    });

// A scale that is a power of two changes no bit, and without an overflow no decision.
TEST(SampleExactness, ALossScaleLeavesNoTrace) {
  const auto plain = train({.dtype = torch::kFloat32, .shares = {{17, 7}}});
  const auto scaled = train({.dtype = torch::kFloat32,
                             .shares = {{17, 7}},
                             .update = {.scaler = precision::LossScalerOptions{.interval = 9}}});
  for (std::size_t i = 0; i < plain.parameters.size(); ++i) {
    EXPECT_TRUE(scaled.parameters[i].equal(plain.parameters[i])) << "parameter " << i;
  }
}

// The test itself must be able to fail: the training moves the parameters far more than the
// tolerance, and learns.
TEST(SampleExactness, TheTrainingIsNotTrivial) {
  for (const auto optimizer : {Optimizer::sgd_momentum, Optimizer::lars, Optimizer::lamb}) {
    const auto once = train({.optimizer = optimizer, .shares = one_worker});
    EXPECT_LT(once.losses.back(), 0.5 * once.losses.front());
    const auto other_batch = train({.optimizer = optimizer, .shares = {{25}}});
    EXPECT_GT(relative_difference(once.parameters[0], other_batch.parameters[0]), 1e-3);
  }
}

}  // namespace
}  // namespace bimetal::golden

// Overflows, which all ranks skip or none. That clipping is exact: tests/golden.
#include "bimetal/train/gradient_stages.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/api/include/torch/optim.h>
#include <torch/csrc/api/include/torch/types.h>
#include <torch/csrc/api/include/torch/utils.h>

#include <array>
#include <limits>

#include "bimetal/base/error.h"
#include "bimetal/task/catalog/job_task.h"
#include "bimetal/train/step.h"
#include "support/errors.h"
#include "support/thread_ranks.h"

namespace bimetal::train {
namespace {

using ::testing::HasSubstr;

constexpr double kTooSteep = 1e38;  // more than float32 can hold, times a scale, or squared

/// A rank whose gradients are `*slope` times what they were; its loss does not depend on it.
struct SteepRank {
  SteepRank(comm::Group group, UpdateOptions update,
            precision::Precision precision = precision::Precision::float32)
      : task("linear", 0, images(), "float32"),
        weight(torch::zeros({16, 10}, torch::requires_grad())),
        sgd(std::vector{weight}, torch::optim::SGDOptions(0.1)),
        step(task, model(), sgd, group, options(update, precision)) {}

  static data::TrainTest images() {
    data::ImageDataset set;
    set.images = torch::zeros({1, 1, 4, 4}, torch::kUInt8);
    set.labels = torch::zeros({1}, torch::kInt64);
    return {set, set};
  }
  static StepOptions options(const UpdateOptions& update, precision::Precision precision) {
    StepOptions options;
    options.update = update;
    options.precision = precision;
    options.parallel.timeout = std::chrono::seconds(60);
    return options;
  }
  task::Model model() const {
    return {{{.name = "steep",
              .parameters = {{"weight", weight}},
              .forward = [weight = weight, slope = slope](const task::Values& inputs) {
                const auto steep = weight * *slope - (weight * (*slope - 1)).detach();
                return task::Values{inputs[0].flatten(1).matmul(steep)};
              }}}};
  }
  StepResult run(std::int64_t number) {
    data::EpochSampler::Step plan;
    plan.counts = plan.weights = {2, 2};
    plan.total = 4;
    plan.indices = {0, 1, 2, 3};
    return step.run(number, plan, [] {
      return task::Values{torch::ones({2, 1, 4, 4}), torch::zeros({2}, torch::kInt64)};
    });
  }

  task::ImageClassification task;
  torch::Tensor weight;
  std::shared_ptr<double> slope = std::make_shared<double>(1);
  torch::optim::SGD sgd;
  TrainingStep step;
};

TEST(GradientStages, AnOverflowOfOneRankIsSkippedByAll) {
  bimetal::testing::run_ranks(2, [](int rank, comm::Group group) {
    SteepRank worker(group, {.scaler = precision::LossScalerOptions{}});
    EXPECT_FALSE(worker.run(1).skipped);
    const auto before = worker.weight.detach().clone();
    if (rank == 1) *worker.slope = kTooSteep;
    const auto result = worker.run(2);
    EXPECT_TRUE(result.applied);
    EXPECT_TRUE(result.skipped);
    EXPECT_TRUE(worker.weight.equal(before));
    EXPECT_EQ(worker.step.stages().loss_scale(), 32768);
    *worker.slope = 1;
    EXPECT_FALSE(worker.run(3).skipped);
    EXPECT_FALSE(worker.weight.equal(before));
  });
}

TEST(GradientStages, RanksOfUnlikePrecisionTakeTheSameStep) {
  torch::Tensor mixed, exact;
  for (auto* result : {&mixed, &exact}) {
    bimetal::testing::run_ranks(2, [&](int rank, comm::Group group) {
      const bool low = result == &mixed && rank == 1;
      SteepRank worker(group, {.limits = {.norm = 0.5}, .scaler = precision::LossScalerOptions{}},
                       low ? precision::Precision::float16 : precision::Precision::float32);
      for (int step = 1; step <= 5; ++step) EXPECT_FALSE(worker.run(step).skipped);
      if (rank == 0) *result = worker.weight.detach().clone();
    });
  }
  const auto difference = (mixed - exact).abs().max() / exact.abs().max();
  EXPECT_LT(difference.item<double>(), 5e-3);
  EXPECT_GT(difference.item<double>(), 0) << "nothing was computed in float16";
}

TEST(GradientStages, DeferredFactorsAreWhatWouldHaveBeenApplied) {
  for (const double value : {0.0, 0.25}) {
    const UpdateOptions update{.limits = {.norm = 0.5, .value = value},
                               .scaler = precision::LossScalerOptions{}};
    GradientStages applied(update), deferred(update);
    deferred.set_factors(Factors::Deferred);
    torch::manual_seed(1);
    const auto a = torch::randn({100}, torch::kFloat64) * applied.loss_scale(), b = a.clone();
    progress::RankFigures norm_a, norm_b;
    norm_a.gradient_norm = applied.inspect({a});
    norm_b.gradient_norm = deferred.inspect({b});
    EXPECT_NEAR(norm_a.gradient_norm, norm_b.gradient_norm, 1e-12);
    EXPECT_TRUE(applied.decide(1, {&norm_a, 1}, {a}));
    EXPECT_TRUE(deferred.decide(1, {&norm_b, 1}, {b}));
    EXPECT_EQ(applied.factor(), 1);
    EXPECT_LT(deferred.factor(), 1);
    EXPECT_LT((a - b * deferred.factor()).abs().max().item<double>(), 1e-15);

    b[7] = std::numeric_limits<double>::infinity();
    norm_b.gradient_norm = deferred.inspect({b});
    EXPECT_FALSE(deferred.decide(2, {&norm_b, 1}, {b}));
    EXPECT_EQ(deferred.loss_scale(), 32768);
  }
}

TEST(GradientStages, SaysThatTheScaleKeepsFalling) {
  bimetal::testing::run_ranks(2, [](int, comm::Group group) {
    SteepRank worker(group, {.scaler = precision::LossScalerOptions{}});
    *worker.slope = kTooSteep;
    for (int step = 1; step <= 7; ++step) {
      EXPECT_TRUE(worker.run(step).skipped);
      EXPECT_FALSE(worker.step.stages().notice());
    }
    worker.run(8);
    ASSERT_TRUE(worker.step.stages().notice());
    EXPECT_THAT(*worker.step.stages().notice(), HasSubstr("keeps falling"));
  });
}

TEST(GradientStages, AScaleThatCannotFallEndsTheJob) {
  bimetal::testing::run_ranks(2, [](int, comm::Group group) {
    SteepRank worker(group,
                     {.scaler = precision::LossScalerOptions{.initial = 65536, .dynamic = false}});
    *worker.slope = kTooSteep;
    for (int step = 1; step <= 9; ++step) EXPECT_TRUE(worker.run(step).skipped);
    expect_error(ErrorCode::NotFinite,
                 {"step 10: the gradients of 10 steps in a row", "train.loss_scale = 0"},
                 [&] { worker.run(10); });
  });
}

TEST(GradientStages, WithoutAScaleTheNormOfWhatIsNotFiniteIsAnError) {
  bimetal::testing::run_ranks(2, [](int rank, comm::Group group) {
    SteepRank worker(group, {.limits = {.norm = 1}});
    const auto before = worker.weight.detach().clone();
    if (rank == 0) *worker.slope = kTooSteep;
    expect_error(ErrorCode::NotFinite, {"step 1: the gradients are not finite"},
                 [&] { worker.run(1); });
    EXPECT_TRUE(worker.weight.equal(before));
  });
}

// Norms differ in their last bits between devices, and parameters must not.
TEST(GradientStages, TheFirstRanksNormCounts) {
  GradientStages stages({.limits = {.norm = 1}});
  auto gradient = torch::full({4}, 2.0, torch::kFloat64);
  EXPECT_EQ(stages.inspect({gradient}), 4);
  const std::array<progress::RankFigures, 2> ranks = {
      {{.gradient_norm = 8.0 - 1e-6}, {.gradient_norm = 4}}};
  EXPECT_TRUE(stages.decide(1, ranks, {gradient}));
  EXPECT_NEAR(gradient[0].item<double>(), 0.25, 1e-15);
}

}  // namespace
}  // namespace bimetal::train

#include <gtest/gtest.h>

#include <cmath>
#include <numbers>

#include "bimetal/optim/optimizers.h"

namespace bimetal::optim {
namespace {

job::TrainConfig config_of(const std::string& schedule, std::int64_t warmup_steps) {
  job::TrainConfig config;
  config.learning_rate = 0.8;
  config.schedule = schedule;
  config.warmup_steps = warmup_steps;
  return config;
}

TEST(Schedule, ConstantIsTheRateItself) {
  for (const std::int64_t step : {1, 2, 100, 101, 5000}) {
    EXPECT_EQ(learning_rate_at(config_of("constant", 0), step, 100), 0.8);
  }
}

TEST(Schedule, WarmsUpLinearly) {
  for (const auto* schedule : {"constant", "cosine"}) {
    const auto config = config_of(schedule, 4);
    EXPECT_DOUBLE_EQ(learning_rate_at(config, 1, 100), 0.2);
    EXPECT_DOUBLE_EQ(learning_rate_at(config, 2, 100), 0.4);
    EXPECT_EQ(learning_rate_at(config, 4, 100), 0.8);
    EXPECT_EQ(learning_rate_at(config, 5, 100), 0.8);
  }
  EXPECT_EQ(learning_rate_at(config_of("constant", 4), 100, 100), 0.8);
}

TEST(Schedule, WarmsUpFromAnotherRateThanNone) {
  auto config = config_of("constant", 4);
  config.warmup_from = 0.4;
  EXPECT_DOUBLE_EQ(learning_rate_at(config, 1, 100), 0.5);
  EXPECT_DOUBLE_EQ(learning_rate_at(config, 2, 100), 0.6);
  EXPECT_DOUBLE_EQ(learning_rate_at(config, 4, 100), 0.8);
  EXPECT_EQ(learning_rate_at(config, 5, 100), 0.8);
}

TEST(Schedule, TheFullRateGrowsWithTheBatch) {
  auto config = config_of("constant", 4);
  EXPECT_EQ(full_rate(config), 0.8);
  config.base_batch = 256;
  config.global_batch = 1024;
  EXPECT_DOUBLE_EQ(full_rate(config), 3.2);
  EXPECT_DOUBLE_EQ(learning_rate_at(config, 5, 100), 3.2);
  config.warmup_from = 0.8;  // from the base rate to the full one, as Goyal et al. do
  EXPECT_DOUBLE_EQ(learning_rate_at(config, 2, 100), 2.0);
}

TEST(Schedule, FallsAsACosine) {
  auto config = config_of("cosine", 4);
  // Steps 5 to 104 are the cosine: step 30 is a quarter of the way, 55 half.
  EXPECT_DOUBLE_EQ(learning_rate_at(config, 30, 104), 0.4 * (1 + std::sqrt(0.5)));
  EXPECT_DOUBLE_EQ(learning_rate_at(config, 55, 104), 0.4);
  EXPECT_DOUBLE_EQ(learning_rate_at(config, 80, 104), 0.4 * (1 - std::sqrt(0.5)));
  EXPECT_GT(learning_rate_at(config, 104, 104), 0);
  EXPECT_EQ(learning_rate_at(config, 105, 104), 0);
  config.min_learning_rate_ratio = 0.25;
  EXPECT_EQ(learning_rate_at(config, 5, 104), 0.8);
  EXPECT_DOUBLE_EQ(learning_rate_at(config, 55, 104), 0.5);
  EXPECT_EQ(learning_rate_at(config, 500, 104), 0.2);
}

TEST(Schedule, FallsAlongALine) {
  auto config = config_of("linear", 4);
  EXPECT_EQ(learning_rate_at(config, 4, 104), 0.8);
  EXPECT_DOUBLE_EQ(learning_rate_at(config, 29, 104), 0.6);
  EXPECT_DOUBLE_EQ(learning_rate_at(config, 79, 104), 0.2);
  EXPECT_EQ(learning_rate_at(config, 104, 104), 0);
  config.min_learning_rate_ratio = 0.25;
  EXPECT_DOUBLE_EQ(learning_rate_at(config, 54, 104), 0.5);
  EXPECT_EQ(learning_rate_at(config, 500, 104), 0.2);
}

TEST(Schedule, WarmsUpAlongALogarithm) {
  auto config = config_of("constant", 16);
  config.warmup = "log";
  EXPECT_DOUBLE_EQ(learning_rate_at(config, 1, 100), 0.2);  // ln 2 / ln 16
  EXPECT_DOUBLE_EQ(learning_rate_at(config, 3, 100), 0.4);
  EXPECT_DOUBLE_EQ(learning_rate_at(config, 15, 100), 0.8);
  EXPECT_EQ(learning_rate_at(config, 16, 100), 0.8);
  config.warmup_steps = 1;
  EXPECT_EQ(learning_rate_at(config, 1, 100), 0.8);
}

TEST(Schedule, CanEndElsewhereThanTheJob) {
  auto config = config_of("cosine", 0);
  config.decay_steps = 50;
  for (const std::int64_t job_steps : {20, 50, 1000}) {
    EXPECT_DOUBLE_EQ(learning_rate_at(config, 26, job_steps), 0.4);
    EXPECT_EQ(learning_rate_at(config, 51, job_steps), 0);
  }
}

TEST(Schedule, WithstandsAWarmUpLongerThanTheJob) {
  const auto config = config_of("cosine", 200);
  EXPECT_DOUBLE_EQ(learning_rate_at(config, 100, 100), 0.4);
  EXPECT_EQ(learning_rate_at(config, 201, 100), 0);
}

}  // namespace
}  // namespace bimetal::optim

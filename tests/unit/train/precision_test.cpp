// Jobs that compute in less than float32.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/api/include/torch/types.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "bimetal/base/error.h"
#include "bimetal/checkpoint/checkpoint.h"
#include "support/errors.h"
#include "unit/train/training_job.h"

namespace bimetal::train {
namespace {

using test::parameters_of;
using ::testing::HasSubstr;

/// Of 20 steps, with equal shares.
class PrecisionJob : public test::CheckpointedJob {
 protected:
  PrecisionJob() : images_(300, 50) {
    job_ = test::small_job(images_);
    job_.parallel.balance = balance::Policy::Equal;
    job_.train.dtype = "float32";
    job_.train.evaluate = false;
  }

  test::SyntheticImages images_;
};

nlohmann::json scaler_of(const std::filesystem::path& checkpoint) {
  return nlohmann::json::parse(std::ifstream(checkpoint / "state.json")).at("loss_scaler");
}

TEST_F(PrecisionJob, ResumesWithItsLossScaleBitForBit) {
  job_.train.precision = "float16";
  job_.model.name = "mlp";
  const auto whole = train("whole", 2);
  const auto scale = last_.reports[0].loss_scale;
  const auto part = train("part", 2, 13);
  const auto rest = train("rest", 2, 0, part);
  ASSERT_TRUE(scale && last_.reports[0].loss_scale);
  EXPECT_EQ(last_.reports[0].loss_scale->scale, scale->scale);
  EXPECT_EQ(last_.reports[0].loss_scale->skipped_steps, scale->skipped_steps);
  const auto scaler = scaler_of(whole);
  EXPECT_EQ(scaler_of(rest), scaler);
  EXPECT_EQ(scaler.at("growth_steps").get<int>() + scaler.at("skipped").get<int>(), 20);
  const auto expected = parameters_of(whole), resumed = parameters_of(rest);
  for (const auto& [name, tensor] : expected) EXPECT_TRUE(tensor.equal(resumed.at(name))) << name;
}

TEST_F(PrecisionJob, AFixedScaleThatIsTooLargeEndsTheJob) {
  job_.train.precision = "float16";
  job_.train.loss_scale = 1e9;
  expect_error(ErrorCode::NotFinite, {"step 10: ", "train.loss_scale = 0"},
               [&] { train("fixed", 2); });
}

TEST_F(PrecisionJob, AutoMeasures) {
  job_.train.precision = "auto";
  train("auto", 1);
  EXPECT_THAT(last_.reports[0].workers[0].precision, ::testing::AnyOf("float32", "bfloat16"));
  job_.train.dtype = "float64";
  train("float64", 1);
  EXPECT_EQ(last_.reports[0].workers[0].precision, "float32");
}

TEST_F(PrecisionJob, WhatCannotWorkIsRefused) {
  job_.train.precision = "bfloat16";
  job_.train.dtype = "float64";
  EXPECT_THROW(train("refused", 1), Error);
}

// Checkpoints of releases that knew no scaler say nothing of one.
TEST_F(PrecisionJob, BeginsWithItsScaleAfterAFloat32Run) {
  const auto part = train("part", 1, 5);
  job_.train.precision = "float16";
  train("rest", 1, 0, part);
  ASSERT_TRUE(last_.reports[0].loss_scale);
  EXPECT_LE(last_.reports[0].loss_scale->scale, 65536);
}

}  // namespace
}  // namespace bimetal::train

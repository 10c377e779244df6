// Jobs that hold out a part of their training data.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/api/include/torch/types.h>

#include "bimetal/data/held_out.h"
#include "unit/train/training_job.h"

namespace bimetal::train {
namespace {

using test::parameters_of;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

class Validation : public test::CheckpointedJob {
 protected:
  Validation() : images_(200, 50) {
    job_ = test::small_job(images_);
    job_.train.epochs = 3;
    job_.data.validation = 0.25;
    job_.checkpoint.keep = 1;
    job_.checkpoint.keep_best = true;
  }

  static std::vector<std::string> judged_by(const progress::Report& report) {
    std::vector<std::string> data;
    for (const auto& point : report.evaluations) data.push_back(point.data);
    return data;
  }

  test::SyntheticImages images_;
};

TEST_F(Validation, TheTestDataAreLookedAtOnce) {
  train("run", 1);
  const auto& report = last_.reports[0];
  EXPECT_EQ(report.steps, 3 * 5);  // 150 samples, 32 in a step
  EXPECT_EQ(report.workers[0].samples, 3 * 150);
  EXPECT_THAT(judged_by(report), ElementsAre("validation", "validation", "validation", "test"));
  EXPECT_THAT(last_.recorders[0].notices,
              Contains(HasSubstr("50 of the 200 training samples are held out")));
  const auto last = progress::last_metrics(report, progress::kValidationData);
  EXPECT_EQ(progress::value_of(last, "accuracy"), report.evaluations[2].metrics[0].value);
  EXPECT_EQ(test::accuracy_of(report), report.evaluations[3].metrics[0].value);
}

TEST_F(Validation, TheBestCheckpointIsKeptAndSaysWhatItWasJudged) {
  job_.train.learning_rate = 5;  // jumps about
  job_.train.epochs = 8;
  train("run", 2);
  const auto& report = last_.reports[0];
  ASSERT_TRUE(report.best);
  std::vector<double> values;
  for (const auto& point : report.evaluations) {
    if (point.data == progress::kValidationData) values.push_back(point.metrics[0].value);
  }
  EXPECT_EQ(report.best->metrics[0].value, std::ranges::max(values));
  EXPECT_EQ(std::filesystem::path(report.best->checkpoint).parent_path(), folder_ / "run" / "best");
  // The job goes on from there for no step, and so judges just these parameters once more.
  job_.train.epochs = static_cast<std::int64_t>(report.best->step / 5);
  const auto again = test::run_job(job_, 1, {.resume = report.best->checkpoint});
  EXPECT_DOUBLE_EQ(again.reports[0].evaluations[0].metrics[0].value, report.best->metrics[0].value);
}

TEST_F(Validation, WhatIsHeldOutIsNotTrainedOn) {
  job_.data.augment = true;
  const auto held = test::task_of(job_);
  job_.data.validation = 0;
  const auto whole = test::task_of(job_);
  const auto parts = data::hold_out(200, 0.25, job_.data.validation_seed);
  const auto compare = [&](const task::Dataset& part, const std::vector<std::int64_t>& samples) {
    ASSERT_EQ(part.size(), std::ssize(samples));
    const auto own = task::batch_of(part, 0, part.size());
    const auto same = whole->training()->batch(samples);
    EXPECT_TRUE(own[0].equal(same[0]));
    EXPECT_TRUE(own[1].equal(same[1]));
  };
  compare(*held->training(), parts.training);
  compare(*held->validation(), parts.validation);
  EXPECT_EQ(held->evaluation()->size(), 50);
  EXPECT_FALSE(whole->validation());
}

TEST_F(Validation, BaggingDrawsFromTheRest) {
  job_.data.bootstrap_seed = 3;
  const auto held = test::task_of(job_);
  const auto training = task::batch_of(*held->training(), 0, held->training()->size())[0];
  const auto validation = task::batch_of(*held->validation(), 0, held->validation()->size())[0];
  EXPECT_EQ(training.size(0), 150);
  for (std::int64_t i = 0; i < validation.size(0); ++i) {
    const auto same = training.eq(validation[i]).flatten(1).all(1);
    EXPECT_FALSE(same.any().item<bool>()) << i;
  }
}

TEST_F(Validation, ARunThatGoesOnIsTheUninterruptedOne) {
  job_.parallel.balance = balance::Policy::Equal;
  const auto whole = parameters_of(train("whole", 2));
  const auto best = last_.reports[0].best;
  const auto part = train("part", 2, 7);
  const auto rest = parameters_of(train("part", 2, 0, part));
  for (const auto& [name, tensor] : whole) EXPECT_TRUE(tensor.equal(rest.at(name))) << name;
  EXPECT_EQ(last_.reports[0].best->step, best->step);
}

}  // namespace
}  // namespace bimetal::train

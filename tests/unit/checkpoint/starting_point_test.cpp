#include "bimetal/checkpoint/starting_point.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace bimetal::checkpoint {
namespace {

using ::testing::HasSubstr;

TEST(StartingPointTest, StepsBeyondTheEpochsAreSaid) {
  job::TrainConfig train{.epochs = 2, .steps = 500, .global_batch = 100};
  const auto planned = planned_steps(train, 1000, {});
  EXPECT_EQ(planned, 20);
  const auto text = early_end(train, planned);
  ASSERT_TRUE(text);
  EXPECT_THAT(*text, HasSubstr("train.steps = 500, but 2 epochs (train.epochs) are over after 20 "
                               "steps"));
  train.epochs = 1;
  EXPECT_THAT(*early_end(train, 1), HasSubstr("1 epoch (train.epochs) is over after 1 step,"));
}

TEST(StartingPointTest, ThereIsNothingToSayWhereStepsEndFirst) {
  EXPECT_FALSE(early_end({.epochs = 2, .steps = 20, .global_batch = 100}, 20));
  EXPECT_FALSE(early_end({.epochs = 2, .steps = 0, .global_batch = 100}, 20));
}

}  // namespace
}  // namespace bimetal::checkpoint

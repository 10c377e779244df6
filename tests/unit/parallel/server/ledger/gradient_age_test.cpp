#include "bimetal/parallel/server/ledger/gradient_age.h"

#include <gtest/gtest.h>

namespace bimetal::parallel::server {
namespace {

TEST(GradientAge, IsWhatHasBeenAppliedMeanwhileInSteps) {
  GradientAge age(7);
  EXPECT_EQ(age.expected(0), 0) << "nothing is known";
  age.add_update(0.25);
  age.add_update(0.75);
  age.add_update(0.5);
  age.observe(0, 8);
  EXPECT_DOUBLE_EQ(age.expected(0), 1.25);
  EXPECT_EQ(age.expected(1), 0);
}

TEST(GradientAge, OneLongPauseDoesNotCount) {
  GradientAge age(0);
  age.observe(0, 0);
  age.observe(0, 0);
  for (int i = 0; i < 50; ++i) age.add_update(1);
  age.observe(0, 0);
  EXPECT_EQ(age.expected(0), 0);
}

TEST(GradientAge, NewAgesReplaceOldOnesAndAreBounded) {
  GradientAge age(0);
  for (int i = 0; i < 5; ++i) age.observe(0, 0);
  for (int i = 0; i < 50; ++i) age.add_update(1);
  for (int i = 0; i < 3; ++i) age.observe(0, 0);
  EXPECT_EQ(age.expected(0), kFurthestAhead);
}

TEST(GradientAge, VersionsThatItDoesNotKnowTellNothing) {
  GradientAge age(10);
  age.observe(0, 3);
  EXPECT_EQ(age.expected(0), 0);
  for (int i = 0; i < 5000; ++i) age.add_update(1);
  age.observe(0, 10);  // too long ago to be followed
  EXPECT_EQ(age.expected(0), 0);
}

}  // namespace
}  // namespace bimetal::parallel::server

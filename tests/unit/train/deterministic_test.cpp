#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/api/include/torch/types.h>

#include "bimetal/base/error.h"
#include "bimetal/train/libtorch_state.h"

namespace bimetal::train {
namespace {

using ::testing::HasSubstr;

/// put_() has no deterministic kernel on any device.
std::string error_of_put() {
  auto x = torch::zeros({4});
  try {
    x.put_(torch::tensor({1, 1}), torch::tensor({1.0f, 2.0f}));
  } catch (const c10::Error& error) {
    return error.what_without_backtrace();
  }
  return "no error";
}

TEST(Deterministic, RefusesOperationsByName) {
  job::TrainConfig job;
  {
    const Deterministic off(job);
    EXPECT_EQ(error_of_put(), "no error");
  }
  job.deterministic = true;
  {
    const Deterministic on(job);
    const auto refused = nondeterministic_operation(error_of_put());
    ASSERT_TRUE(refused.has_value());
    EXPECT_THAT(*refused, HasSubstr("'put_' has no deterministic kernel"));
    EXPECT_THAT(*refused, HasSubstr("train.deterministic = false"));
  }
  EXPECT_EQ(error_of_put(), "no error") << "it is over";
  EXPECT_EQ(nondeterministic_operation("something else went wrong"), std::nullopt);
}

TEST(Deterministic, RefusesWhatMeasuredTimesDecide) {
  job::JobConfig job;
  job.train.deterministic = true;
  EXPECT_NO_THROW(require_deterministic(job, 1));
  EXPECT_THROW(require_deterministic(job, 2), Error);
  job.parallel.balance = balance::Policy::Equal;
  EXPECT_NO_THROW(require_deterministic(job, 2));
  job.parallel.mode = "server";
  EXPECT_THROW(require_deterministic(job, 1), Error);
  job.train.deterministic = false;
  EXPECT_NO_THROW(require_deterministic(job, 1));
}

}  // namespace
}  // namespace bimetal::train

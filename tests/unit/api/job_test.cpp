#include "bimetal/api/job.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/api/include/torch/types.h>
#include <torch/csrc/api/include/torch/utils.h>

#include <cstdlib>

#include "bimetal/base/error.h"
#include "bimetal/bimetal.h"

namespace bimetal {
namespace {

using ::testing::HasSubstr;

TEST(Job, ProcessThatNothingStartedIsAJobOfOne) {
  const auto job = init();
  EXPECT_EQ(job.rank(), 0);
  EXPECT_EQ(job.world_size(), 1);
  std::vector<float> value = {3};
  job.group().all_reduce(comm::buffer(std::span(value))).wait();
  EXPECT_EQ(value[0], 3);
}

TEST(Job, TakesTheDeviceFromTheArguments) {
  const char* arguments[] = {"program", "--steps", "3", "--worker", "cpu:threads=1"};
  EXPECT_TRUE(init(5, arguments).device().is_cpu());
  EXPECT_EQ(torch::get_num_threads(), 1);
  const char* joined[] = {"program", "--worker=cpu:threads=1"};
  EXPECT_TRUE(init(2, joined).device().is_cpu());
}

TEST(Job, RefusesADeviceThatMakesNoSense) {
  const char* nonsense[] = {"program", "--worker=toaster"};
  EXPECT_THROW(init(2, nonsense), Error);
  const char* missing[] = {"program", "--worker"};
  EXPECT_THROW(init(2, missing), Error);
  setenv("BIMETAL_WORKER", "cpu:speed=7", 1);
  EXPECT_THROW(init(), Error);
  unsetenv("BIMETAL_WORKER");
}

TEST(Job, RefusesHalfATorchrunEnvironment) {
  setenv("RANK", "0", 1);
  try {
    init();
    ADD_FAILURE() << "nothing was thrown";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::InvalidArgument);
    EXPECT_THAT(error.what(), HasSubstr("WORLD_SIZE"));
  }
  unsetenv("RANK");
}

TEST(Job, HasNoProgressBeforeItsFirstLoop) {
  EXPECT_THROW(init().progress(), Error);
}

}  // namespace
}  // namespace bimetal

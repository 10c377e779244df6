#include <gtest/gtest.h>
#include <torch/csrc/api/include/torch/types.h>
#include <torch/csrc/api/include/torch/utils.h>

#include <thread>

#include "bimetal/base/deadline.h"
#include "bimetal/checkpoint/starting_point.h"
#include "bimetal/task/catalog/image_classification.h"
#include "bimetal/train/measure/step_probe.h"

namespace bimetal::train {
namespace {

using namespace std::chrono_literals;

/// The next thing measured; gives up after a minute.
progress::ShadowFigures soon(ShadowBatch& shadow) {
  const auto deadline = Deadline::after(60s);
  for (;;) {
    const auto figures = shadow.take();
    if (figures.batch > 0 || deadline.expired()) return figures;
    std::this_thread::sleep_for(1ms);
  }
}

task::ImageClassification some_task() {
  const data::ImageDataset set{torch::zeros({64, 1, 28, 28}, torch::kUInt8),
                               torch::zeros({64}, torch::kInt64)};
  return {job::JobConfig().model.name, 0, {set, set}, "float32"};
}

TEST(ShadowBatch, MeasuresOneBatchAtATimeAndTellsOnce) {
  const job::TrainConfig job;
  const auto task = some_task();
  ShadowBatch shadow(job, task, {});
  EXPECT_EQ(shadow.take().batch, 0);
  shadow.begin(32);
  const auto figures = soon(shadow);
  EXPECT_EQ(figures.batch, 32);
  EXPECT_GT(figures.seconds, 0);
  EXPECT_EQ(shadow.take().batch, 0);
  shadow.rest();
  shadow.begin(1000);
  EXPECT_EQ(soon(shadow).batch, 64) << "there are no more";
}

TEST(ShadowBatch, CountsEmulatedSlownessWithoutSleepingIt) {
  const job::TrainConfig job;
  const auto task = some_task();
  ShadowBatch shadow(job, task, {.speed = 1e-6});
  shadow.begin(16);
  EXPECT_GT(soon(shadow).seconds, 60) << "a millionth of a processor";
}

TEST(ShadowBatch, LeavesTheRandomNumbersAlone) {
  const job::TrainConfig job;
  const auto task = some_task();
  torch::manual_seed(5);
  const auto before = checkpoint::random_state();
  ShadowBatch shadow(job, task, {});
  shadow.begin(16);
  ASSERT_EQ(soon(shadow).batch, 16);
  EXPECT_EQ(checkpoint::random_state(), before);
}

TEST(ShadowBatch, EndsWithABatchUnderWay) {
  const job::TrainConfig job;
  const auto task = some_task();
  ShadowBatch shadow(job, task, {});
  shadow.begin(64);
}

}  // namespace
}  // namespace bimetal::train

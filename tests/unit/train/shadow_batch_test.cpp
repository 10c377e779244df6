#include <gtest/gtest.h>
#include <torch/csrc/api/include/torch/types.h>
#include <torch/csrc/api/include/torch/utils.h>

#include <thread>

#include "bimetal/base/deadline.h"
#include "bimetal/checkpoint/starting_point.h"
#include "bimetal/task/catalog/job_task.h"
#include "bimetal/train/measure/step_probe.h"
#include "unit/train/training_job.h"

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
  ShadowBatch shadow(job, task, {.on = {.speed = 1e-6}});
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

/// In the type that probes compute in unless they are told otherwise.
std::shared_ptr<const task::Task> task_in_float(job::JobConfig job) {
  job.train.dtype = "float32";
  return test::task_of(job);
}

TEST(StepProbe, MeasuresATimeThatGrowsWithTheBatch) {
  const test::SyntheticImages images(600, 10, 28);
  auto job = test::small_job(images);
  job.model.name = "mlp";
  job.train.global_batch = 256;
  const auto task = task_in_float(job);
  const auto cost = probe_step(job.train, *task, {.budget = std::chrono::milliseconds(300)});
  EXPECT_TRUE(cost.known());
  EXPECT_GE(cost.alpha(), 0);
  EXPECT_GT(cost.beta(), 0);
  EXPECT_GT(cost.seconds(256), cost.seconds(16));
}

TEST(StepProbe, DoesNotNeedMoreSamplesThanThereAre) {
  const test::SyntheticImages images(3, 1);
  auto job = test::small_job(images);
  const auto task = task_in_float(job);
  EXPECT_TRUE(probe_step(job.train, *task, {.budget = std::chrono::milliseconds(10)}).known());
}

/// Another's, with what each loss was.
class WatchedTask : public task::Task {
 public:
  explicit WatchedTask(std::shared_ptr<const task::Task> other) : other_(std::move(other)) {}

  task::Model make_model() const override { return other_->make_model(); }
  std::shared_ptr<const task::Dataset> training() const override { return other_->training(); }
  task::Values inputs(const task::Values& batch) const override { return other_->inputs(batch); }
  torch::Tensor loss_sum(const task::Values& outputs, const task::Values& batch) const override {
    losses.push_back(other_->loss_sum(outputs, batch));
    return losses.back();
  }

  mutable std::vector<torch::Tensor> losses;

 private:
  std::shared_ptr<const task::Task> other_;
};

TEST(StepProbe, MeasuresTheModelAsItIsMadeHoweverFastTheJobLearns) {
  const test::SyntheticImages images(4, 1);
  auto job = test::small_job(images);
  job.train.global_batch = 1;
  job.train.learning_rate = 1e6;
  const WatchedTask task(task_in_float(job));
  ASSERT_TRUE(probe_step(job.train, task, {.budget = std::chrono::milliseconds(10)}).known());
  ASSERT_GE(task.losses.size(), 3u);
  for (const auto& loss : task.losses)
    EXPECT_EQ(loss.item<double>(), task.losses.front().item<double>());
}

}  // namespace
}  // namespace bimetal::train

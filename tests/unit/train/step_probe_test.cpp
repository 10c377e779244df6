#include "bimetal/train/measure/step_probe.h"

#include <gtest/gtest.h>
#include <torch/csrc/api/include/torch/types.h>

#include "unit/train/training_job.h"

namespace bimetal::train {
namespace {

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

TEST(StepProbe, EveryRankLearnsEveryRanksCost) {
  const test::SyntheticImages images(600, 10, 28);
  auto job = test::small_job(images);
  job.model.name = "mlp";
  job.train.global_batch = 256;
  const auto task = task_in_float(job);
  std::vector<std::vector<balance::Device>> known(2);
  bimetal::testing::run_ranks(2, [&](int, comm::Group group) {
    const double speed = group.rank() == 0 ? 1.0 : 0.1;
    known[static_cast<std::size_t>(group.rank())] =
        probe_devices(group, job.train, *task, {.speed = speed});
  });
  for (int rank : {0, 1}) {
    EXPECT_EQ(known[0][rank].cost.alpha(), known[1][rank].cost.alpha());
    EXPECT_EQ(known[0][rank].cost.beta(), known[1][rank].cost.beta());
  }
  EXPECT_GT(known[0][1].cost.seconds(256), 2 * known[0][0].cost.seconds(256));
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

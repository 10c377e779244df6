// Real lack of memory: a worker of its own process, granted less than its share needs.

#include <gtest/gtest.h>
#include <torch/csrc/api/include/torch/types.h>
#include <torch/csrc/api/include/torch/utils.h>

#include "support/forked_child.h"
#include "unit/train/training_job.h"

namespace bimetal::train {
namespace {

/// Two steps of the CNN on 3000 images at once, whose activations take more than 1 GB.
job::JobConfig large_job(const test::SyntheticImages& images) {
  auto job = test::small_job(images);
  job.model.name = "cnn";
  job.train.dtype = "float32";
  job.train.global_batch = 3000;
  job.train.micro_batch = 3000;
  job.train.epochs = 2;
  job.train.evaluate = false;
  return job;
}

int train_with(const job::JobConfig& job, const std::string& worker, test::Recorder& recorder) {
  torch::set_num_threads(1);
  int steps = 0;
  bimetal::testing::run_ranks(1, [&](int, comm::Group group) {
    TrainerOptions options;
    options.worker = job::parse_worker_spec(worker);
    steps = static_cast<int>(run_training(job, group, options, recorder).steps);
  });
  return steps;
}

TEST(MemoryLimit, TrainingGoesOnInSmallerMicroBatches) {
  const test::SyntheticImages images(3000, 10, 28);
  const auto job = large_job(images);
  bimetal::test::ForkedChild child([&] {
    test::Recorder recorder;
    if (train_with(job, "cpu:threads=1,memory=700MiB", recorder) != 2) return 1;
    for (const auto& notice : recorder.notices) {
      if (notice.find("smaller micro-batches") != std::string::npos) return 0;
    }
    return 2;  // it fitted at once: the test tests nothing
  });
  EXPECT_EQ(child.wait(), 0);
}

}  // namespace
}  // namespace bimetal::train

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/api/include/torch/types.h>

#include <atomic>

#include "bimetal/base/error.h"
#include "support/errors.h"
#include "unit/train/training_job.h"

namespace bimetal::train {
namespace {

using test::parameters_of;
using test::run_job;
using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::SizeIs;

/// A job of 20 steps (2 epochs of 10) with equal shares, and its first 13 steps apart.
class Resume : public test::CheckpointedJob {
 protected:
  Resume() : images_(300, 50) {
    job_ = test::small_job(images_);
    job_.parallel.balance = balance::Policy::Equal;
    job_.train.evaluate = false;
  }

  test::SyntheticImages images_;
};

void expect_equal_bits(const checkpoint::TensorMap& a, const checkpoint::TensorMap& b) {
  for (const auto& [name, tensor] : a) EXPECT_TRUE(tensor.equal(b.at(name))) << name;
}

TEST_F(Resume, IsTheUninterruptedRunBitForBit) {
  for (const std::string optimizer : {"sgd", "adamw", "lars", "lamb"}) {
    job_.train.optimizer = optimizer;
    const auto whole = train("whole-" + optimizer, 2, 0);
    const auto part = train("part-" + optimizer, 2, 13);
    const auto rest = train("rest-" + optimizer, 2, 0, part);
    EXPECT_EQ(last_.reports[0].steps, 20);
    EXPECT_THAT(last_.recorders[1].steps, SizeIs(7));
    EXPECT_EQ(last_.recorders[0].steps.front().step, 14);
    expect_equal_bits(parameters_of(whole), parameters_of(rest));
  }
}

TEST_F(Resume, GoesOnWithTheScheduleBitForBit) {
  job_.train.schedule = "cosine";
  job_.train.warmup_steps = 4;
  const auto whole = train("whole", 2, 0);
  const auto unscheduled = [&] {
    auto job = job_;
    job.train.schedule = "constant";
    job.checkpoint.dir = (folder_ / "constant").string();
    return run_job(job, 2).recorders[0].checkpoints.back();
  }();
  EXPECT_FALSE(test::relative_difference(parameters_of(whole), parameters_of(unscheduled)) < 1e-3);

  auto job = job_;
  job.checkpoint.dir = (folder_ / "interrupted").string();
  std::atomic<int> asked = 0;
  const auto interrupted =
      run_job(job, 2, {.stop_requested = [&](int rank) { return rank == 0 && ++asked == 7; }});
  EXPECT_EQ(interrupted.reports[0].steps, 7);
  const std::filesystem::path part = interrupted.recorders[0].checkpoints.back();
  // The job's rate is recorded, so that going on with the same job changes nothing.
  EXPECT_THAT(bimetal::test::contents_of(part / "state.json"),
              HasSubstr("\"learning_rate\": 0.1,"));
  const auto rest = train("rest", 2, 0, part);
  EXPECT_EQ(last_.reports[0].steps, 20);
  expect_equal_bits(parameters_of(whole), parameters_of(rest));
}

TEST_F(Resume, TakesTheNewestOfAFolderAndAFinishedEpoch) {
  const auto whole = train("whole", 2, 0);
  train("part", 2, 10);
  const auto rest = train("rest", 2, 0, folder_ / "part");
  EXPECT_EQ(last_.recorders[0].steps.front().epoch, 2);
  expect_equal_bits(parameters_of(whole), parameters_of(rest));
}

// One rank's residual is shared out to both, so that bits differ. Without it, they would differ a
// hundred times more.
TEST_F(Resume, GoesOnWithWhatCompressionOwes) {
  job_.compression.gradients = "topk";
  job_.compression.links = "all";
  job_.compression.topk_density = 0.2;
  job_.train.momentum = 0;
  const auto whole = parameters_of(train("whole", 2, 0));
  const auto part = train("part", 2, 13);
  const auto rest = parameters_of(train("rest", 2, 0, part));
  EXPECT_THAT(last_.recorders[0].notices, ::testing::IsEmpty());
  EXPECT_LT(test::relative_difference(rest, whole), 0.05);
  EXPECT_TRUE(std::filesystem::exists(part / "error_feedback.safetensors"));
  job_.compression.gradients = "none";
  train("other", 2, 0, part);
  EXPECT_THAT(last_.recorders[0].notices, ::testing::Contains(HasSubstr("error feedback")));
}

TEST_F(Resume, OnlyRankZeroNeedsTheFiles) {
  const auto whole = train("whole", 2, 0);
  const auto part = train("part", 2, 13);
  job_.checkpoint.dir = (folder_ / "rest").string();
  bimetal::testing::run_ranks(2, [&](int, comm::Group group) {
    TrainerOptions options;
    options.worker = job::parse_worker_spec("cpu:threads=1");
    if (group.rank() == 0) options.resume = part;
    progress::Observer nobody;
    run_training(job_, group, options, nobody);
  });
  expect_equal_bits(parameters_of(whole), parameters_of(folder_ / "rest" / "step-00000020"));
}

TEST_F(Resume, AllowsAnotherGlobalBatchAndSaysSo) {
  const auto part = train("part", 2, 13);
  job_.train.global_batch = 50;
  train("rest", 2, 0, part);
  // 300 − 3·32 = 204 samples of the second epoch are left: 5 steps.
  EXPECT_EQ(last_.reports[0].steps, 18);
  EXPECT_THAT(last_.recorders[0].notices, ::testing::Contains(HasSubstr("global_batch = 32")));
}

TEST_F(Resume, RefusesAnotherSeed) {
  const auto part = train("part", 1, 13);
  job_.train.seed = 99;
  expect_error(ErrorCode::InvalidArgument, {"train.seed = 1"}, [&] { train("rest", 1, 0, part); });
}

TEST_F(Resume, OfAFinishedJobDoesNothing) {
  const auto whole = train("whole", 2, 0);
  auto job = job_;
  job.checkpoint.dir = (folder_ / "again").string();
  const auto again = run_job(job, 2, {.resume = whole});
  EXPECT_EQ(again.reports[0].steps, 20);
  EXPECT_TRUE(again.recorders[0].steps.empty());
}

TEST_F(Resume, MissingCheckpointEndsAllRanks) {
  EXPECT_THROW(train("rest", 2, 0, folder_ / "nothing"), Error);
}

}  // namespace
}  // namespace bimetal::train

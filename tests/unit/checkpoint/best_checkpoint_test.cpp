#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/api/include/torch/optim.h>
#include <torch/csrc/api/include/torch/types.h>
#include <torch/csrc/api/include/torch/utils.h>

#include <fstream>
#include <limits>

#include "bimetal/checkpoint/checkpoint.h"
#include "bimetal/checkpoint/checkpoint_folder.h"
#include "bimetal/checkpoint/starting_point.h"
#include "support/temporary_folder.h"
#include "unit/checkpoint/small_net.h"

namespace bimetal::checkpoint {
namespace {

namespace fs = std::filesystem;

progress::Evaluation judged(double accuracy, double loss) {
  return {.loss = loss, .metrics = {{"accuracy", accuracy}}, .data = progress::kValidationData};
}

progress::Evaluation judged_by_loss(double loss) {
  return {.loss = loss, .metrics = {{"perplexity", 100 - loss}}};
}

TEST(IsBetter, AccuraciesAreAndTheLossDecidesBetweenEqualOnes) {
  EXPECT_TRUE(is_better(judged(0.9, 2), judged(0.8, 1)));
  EXPECT_FALSE(is_better(judged(0.8, 1), judged(0.9, 2)));
  EXPECT_TRUE(is_better(judged(0.9, 1), judged(0.9, 2)));
  EXPECT_FALSE(is_better(judged(0.9, 2), judged(0.9, 2)));
  EXPECT_TRUE(is_better(judged_by_loss(1), judged_by_loss(2)));
  EXPECT_FALSE(is_better(judged_by_loss(2), judged_by_loss(1)));
}

TEST(IsBetter, WhatIsNoNumberNeverIs) {
  constexpr auto nan = std::numeric_limits<double>::quiet_NaN();
  EXPECT_FALSE(is_better(judged(0.9, nan), judged(0.1, 2)));
  EXPECT_FALSE(is_better(judged(nan, 1), judged(0.1, 2)));
  EXPECT_TRUE(is_better(judged(0.1, 2), judged(nan, 1)));
}

class BestCheckpointTest : public ::testing::Test {
 protected:
  /// A checkpoint of a step, whose parameters tell which.
  fs::path save(std::int64_t step) {
    {
      const torch::NoGradGuard no_grad;
      for (auto& parameter : net_.parameters()) parameter.fill_(static_cast<double>(step));
    }
    TrainingState state;
    state.step = step;
    return save_checkpoint(dir(), net_state(), optimizer_, state, /*keep=*/1);
  }

  task::ModelState net_state() { return task::ModelState(net_); }
  fs::path dir() const { return folder_ / "run"; }
  fs::path best() const { return dir() / kBestFolder; }

  /// The step of the parameters that are there.
  double kept_step() {
    load_checkpoint_model(best(), net_state());
    return net_.parameters()[0].flatten()[0].item<double>();
  }

  bimetal::test::TemporaryFolder folder_;
  SmallNet net_;
  torch::optim::SGD optimizer_{net_.parameters(), torch::optim::SGDOptions(0.1)};
};

TEST_F(BestCheckpointTest, StaysWhenOthersGo) {
  BestCheckpoint kept(dir(), 0);
  kept.offer(save(1), 1, judged(0.5, 1.0));
  kept.offer(save(2), 2, judged(0.8, 0.7));
  kept.offer(save(3), 3, judged(0.7, 0.6));
  EXPECT_EQ(kept_step(), 2);
  EXPECT_EQ(kept.best()->step, 2);
  EXPECT_EQ(kept.best()->checkpoint, (best() / "step-00000002").string());
  EXPECT_EQ(last_save(dir()).step, 3);
  kept.offer(save(4), 4, judged(0.9, 0.6));
  EXPECT_EQ(kept_step(), 4);
  EXPECT_FALSE(fs::exists(best() / "step-00000002"));
}

TEST_F(BestCheckpointTest, AnotherRunInTheFolderTakesItsPlace) {
  BestCheckpoint(dir(), 0).offer(save(9), 9, judged(0.8, 0.7));
  BestCheckpoint anew(dir(), 0);
  anew.offer(save(2), 2, judged(0.1, 2.0));
  EXPECT_EQ(kept_step(), 2);
  // And one that goes on from before the best step has not made it.
  BestCheckpoint earlier(dir(), 1);
  EXPECT_FALSE(earlier.best());
}

TEST_F(BestCheckpointTest, DamagedFiguresAreLeftAside) {
  BestCheckpoint(dir(), 0).offer(save(2), 2, judged(0.8, 0.7));
  std::ofstream(best() / "best.json") << "{";
  BestCheckpoint later(dir(), 3);
  EXPECT_FALSE(later.best());
  later.offer(save(4), 4, judged(0.1, 0.9));
  EXPECT_EQ(kept_step(), 4);
}

TEST_F(BestCheckpointTest, WithoutAFolderTheFiguresAloneAreKept) {
  BestCheckpoint kept({}, 0);
  kept.offer({}, 2, judged(0.8, 0.7));
  kept.offer({}, 3, judged(std::numeric_limits<double>::quiet_NaN(), 0.7));
  EXPECT_EQ(kept.best()->step, 2);
  EXPECT_EQ(kept.best()->checkpoint, "");
}

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

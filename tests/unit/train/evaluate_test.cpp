#include "bimetal/train/evaluate.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "bimetal/data/dataset.h"
#include "unit/train/training_job.h"

namespace bimetal::train {
namespace {

struct Evaluated {
  Evaluation result;
  bool training_mode = false;
};

Evaluated evaluate_on(const data::ImageDataset& set, int ranks, std::vector<double> speeds) {
  std::vector<Evaluated> all(static_cast<std::size_t>(ranks));
  bimetal::testing::run_ranks(ranks, [&](int, comm::Group group) {
    // The same values on every rank, without the generator that the threads share.
    auto model = models::make_model("linear", {.height = 8, .width = 8});
    const torch::NoGradGuard no_grad;
    for (auto& parameter : model->parameters()) {
      parameter.copy_(torch::linspace(-1, 1, parameter.numel()).sin().mul(7).view_as(parameter));
    }
    auto& mine = all[static_cast<std::size_t>(group.rank())];
    mine.result = evaluate(*model, set, group, speeds, {});
    mine.training_mode = model->is_training();
  });
  for (const auto& other : all) {
    EXPECT_EQ(other.result.accuracy, all[0].result.accuracy);
    EXPECT_EQ(other.result.loss, all[0].result.loss);
    EXPECT_TRUE(other.training_mode);
  }
  return all[0];
}

TEST(Evaluate, IsTheSameToTheLastBitForAnySplit) {
  const test::SyntheticImages images(10, 1130);  // five chunks, the last of them short
  const auto set = data::load_dataset("mnist", images.path()).test;
  const auto alone = evaluate_on(set, 1, {1.0}).result;
  EXPECT_GT(alone.accuracy, 0);
  EXPECT_LT(alone.accuracy, 1);
  for (const auto& speeds : {std::vector<double>{1, 1, 1}, {9, 0, 1}, {0, 0, 0}}) {
    const auto split = evaluate_on(set, 3, speeds).result;
    EXPECT_EQ(split.accuracy, alone.accuracy);
    EXPECT_EQ(split.loss, alone.loss);
  }
}

TEST(Evaluate, CountsWhatTheModelGetsRight) {
  const test::SyntheticImages images(10, 300);
  const auto set = data::load_dataset("mnist", images.path()).test;
  auto model = models::make_model("linear", {.height = 8, .width = 8});
  const auto batch = data::make_batch(set, torch::arange(300), torch::kFloat32);
  const auto logits = model->forward(batch.x);
  const auto expected = logits.argmax(1).eq(batch.y).to(torch::kFloat64).mean().item<double>();
  const auto loss = torch::nn::functional::cross_entropy(logits, batch.y).item<double>();
  bimetal::testing::run_ranks(1, [&](int, comm::Group group) {
    const auto result = evaluate(*model, set, group, std::vector<double>{1}, {});
    EXPECT_NEAR(result.accuracy, expected, 1e-12);
    EXPECT_NEAR(result.loss, loss, 1e-5);
  });
}

}  // namespace
}  // namespace bimetal::train

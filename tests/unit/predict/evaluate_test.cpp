#include "bimetal/predict/evaluate.h"

#include <gtest/gtest.h>
#include <torch/csrc/api/include/torch/nn.h>
#include <torch/csrc/api/include/torch/types.h>
#include <torch/csrc/api/include/torch/utils.h>

#include <chrono>
#include <cmath>
#include <limits>
#include <thread>
#include <vector>

#include "bimetal/base/deadline.h"
#include "bimetal/models/registry.h"
#include "bimetal/predict/predict.h"
#include "bimetal/task/catalog/job_task.h"
#include "unit/train/training_job.h"

namespace bimetal::predict {
namespace {

struct Evaluated {
  progress::Evaluation result;
  bool training_mode = false;
};

double accuracy_of(const progress::Evaluation& evaluation) {
  return progress::value_of(evaluation.metrics, "accuracy");
}

Evaluated evaluate_on(const task::Task& task, int ranks, std::vector<double> speeds) {
  std::vector<Evaluated> all(static_cast<std::size_t>(ranks));
  bimetal::testing::run_ranks(ranks, [&](int, comm::Group group) {
    // The same values on every rank, without the generator that the threads share.
    const auto module = models::make_model("linear", {.height = 8, .width = 8});
    const auto model = module->units();
    const torch::NoGradGuard no_grad;
    for (auto& parameter : model.parameters()) {
      parameter.copy_(torch::linspace(-1, 1, parameter.numel()).sin().mul(7).view_as(parameter));
    }
    auto& mine = all[static_cast<std::size_t>(group.rank())];
    mine.result = evaluate(task, model, group, speeds, {});
    mine.training_mode = module->children().front()->is_training();
  });
  for (const auto& other : all) {
    EXPECT_EQ(accuracy_of(other.result), accuracy_of(all[0].result));
    EXPECT_EQ(other.result.loss, all[0].result.loss);
    EXPECT_TRUE(other.training_mode);
  }
  return all[0];
}

TEST(Evaluate, IsTheSameToTheLastBitForAnySplit) {
  const train::test::SyntheticImages images(10, 1130);  // five chunks, the last of them short
  const task::ImageClassification task("linear", 0, data::load_dataset("mnist", images.path()),
                                       "float32");
  const auto alone = evaluate_on(task, 1, {1.0}).result;
  EXPECT_GT(accuracy_of(alone), 0);
  EXPECT_LT(accuracy_of(alone), 1);
  for (const auto& speeds : {std::vector<double>{1, 1, 1}, {9, 0, 1}, {0, 0, 0}}) {
    const auto split = evaluate_on(task, 3, speeds).result;
    EXPECT_EQ(accuracy_of(split), accuracy_of(alone));
    EXPECT_EQ(split.loss, alone.loss);
  }
}

TEST(Evaluate, CountsWhatTheModelGetsRight) {
  const train::test::SyntheticImages images(10, 300);
  const task::ImageClassification task("linear", 0, data::load_dataset("mnist", images.path()),
                                       "float32");
  const auto set = data::load_dataset("mnist", images.path()).test;
  auto model = models::make_model("linear", {.height = 8, .width = 8});
  const auto batch = data::make_batch(set, torch::arange(300), torch::kFloat32);
  const auto logits = model->forward(batch.x);
  const auto expected = logits.argmax(1).eq(batch.y).to(torch::kFloat64).mean().item<double>();
  const auto loss = torch::nn::functional::cross_entropy(logits, batch.y).item<double>();
  bimetal::testing::run_ranks(1, [&](int, comm::Group group) {
    const auto result = evaluate(task, model->units(), group, std::vector<double>{1}, {});
    EXPECT_NEAR(accuracy_of(result), expected, 1e-12);
    EXPECT_NEAR(result.loss, loss, 1e-5);
  });
}

// Pauses of several ranks that wait for each other would make each other longer.
TEST(Evaluate, PausesForComputingAlone) {
  const train::test::SyntheticImages images(10, 30);
  const task::ImageClassification task("linear", 0, data::load_dataset("mnist", images.path()),
                                       "float32");
  const auto module = models::make_model("linear", {.height = 8, .width = 8});
  auto model = module->units();
  static constexpr double kWait = 0.3;
  double waited = 0;
  model.units.push_back(
      {.name = "waiting", .parameters = {}, .forward = [&waited](const task::Values& inputs) {
         std::this_thread::sleep_for(std::chrono::duration<double>(kWait));
         waited += kWait;
         return inputs;
       }});
  const Stopwatch watch;
  evaluate_chunks(task, model, 0, 1, {.speed = 0.1, .waited = [&waited] { return waited; }});
  EXPECT_LT(watch.seconds(), 5 * kWait);  // with a pause for it, ten times
}

TEST(Predict, HasTheAccuracyAndLossThatTrainingReports) {
  const train::test::SyntheticImages images(10, 630);  // three parts, the last of them short
  const auto data = data::load_dataset("mnist", images.path());
  const task::ImageClassification task("linear", 0, data, "float32");
  const auto model = task.make_model();
  const auto probabilities = predict(task, model, {});
  ASSERT_EQ(probabilities.sizes(), (std::vector<std::int64_t>{630, 10}));
  EXPECT_TRUE(torch::allclose(probabilities.sum(1), torch::ones({630}, torch::kFloat64)));
  EXPECT_TRUE(labels_of(task).equal(data.test.labels));
  const auto scored = score(probabilities, data.test.labels);
  bimetal::testing::run_ranks(1, [&](int, comm::Group group) {
    const auto evaluated = evaluate(task, model, group, std::vector<double>{1}, {});
    EXPECT_EQ(scored.metrics, evaluated.metrics);
    EXPECT_NEAR(scored.loss, evaluated.loss, 1e-6);
  });
}

TEST(Predict, ScoresAreThoseOfTheDefinition) {
  const auto probabilities =
      torch::tensor({{0.5, 0.3, 0.2}, {0.1, 0.2, 0.7}, {0.0, 1.0, 0.0}}, torch::kFloat64);
  const auto scored = score(probabilities, torch::tensor({0, 1, 0}, torch::kInt64));
  EXPECT_NEAR(progress::value_of(scored.metrics, "accuracy"), 1.0 / 3, 1e-15);
  const double least = std::numeric_limits<double>::min();  // in place of 0, whose loss is infinite
  EXPECT_NEAR(scored.loss, -(std::log(0.5) + std::log(0.2) + std::log(least)) / 3, 1e-12);
}

}  // namespace
}  // namespace bimetal::predict

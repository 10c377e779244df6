#include "bimetal/train/predict.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cmath>
#include <limits>
#include <vector>

#include "bimetal/data/dataset.h"
#include "unit/train/training_job.h"

namespace bimetal::train {
namespace {

TEST(Predict, HasTheAccuracyAndLossThatTrainingReports) {
  const test::SyntheticImages images(10, 630);  // three parts, the last of them short
  const auto set = data::load_dataset("mnist", images.path()).test;
  auto model = models::make_model("linear", {.height = 8, .width = 8});
  const auto probabilities = predict(*model, set, {});
  ASSERT_EQ(probabilities.sizes(), (std::vector<std::int64_t>{630, 10}));
  EXPECT_TRUE(torch::allclose(probabilities.sum(1), torch::ones({630}, torch::kFloat64)));
  const auto scored = score(probabilities, set.labels);
  bimetal::testing::run_ranks(1, [&](int, comm::Group group) {
    const auto evaluated = evaluate(*model, set, group, std::vector<double>{1}, {});
    EXPECT_EQ(scored.accuracy, evaluated.accuracy);
    EXPECT_NEAR(scored.loss, evaluated.loss, 1e-6);
  });
}

TEST(Predict, ScoresAreThoseOfTheDefinition) {
  const auto probabilities =
      torch::tensor({{0.5, 0.3, 0.2}, {0.1, 0.2, 0.7}, {0.0, 1.0, 0.0}}, torch::kFloat64);
  const auto scored = score(probabilities, torch::tensor({0, 1, 0}, torch::kInt64));
  EXPECT_NEAR(scored.accuracy, 1.0 / 3, 1e-15);
  const double least = std::numeric_limits<double>::min();  // in place of 0, whose loss is infinite
  EXPECT_NEAR(scored.loss, -(std::log(0.5) + std::log(0.2) + std::log(least)) / 3, 1e-12);
}

}  // namespace
}  // namespace bimetal::train

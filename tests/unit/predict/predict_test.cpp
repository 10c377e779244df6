#include "bimetal/predict/predict.h"

#include <gtest/gtest.h>
#include <torch/csrc/api/include/torch/types.h>

#include <cmath>
#include <limits>
#include <vector>

#include "bimetal/models/registry.h"
#include "bimetal/task/catalog/image_classification.h"
#include "unit/train/training_job.h"

namespace bimetal::predict {
namespace {

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

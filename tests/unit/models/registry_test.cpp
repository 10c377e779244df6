#include "bimetal/models/registry.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/api/include/torch/nn.h>
#include <torch/csrc/api/include/torch/utils.h>

#include <map>
#include <string>
#include <vector>

#include "bimetal/base/error.h"
#include "support/errors.h"

namespace bimetal::models {
namespace {

std::map<std::string, std::vector<std::int64_t>> parameter_shapes(const std::string& name,
                                                                  std::int64_t hidden = 0) {
  std::map<std::string, std::vector<std::int64_t>> shapes;
  for (const auto& item : make_model(name, {}, hidden)->named_parameters()) {
    shapes[item.key()] = item.value().sizes().vec();
  }
  return shapes;
}

/// As narrow as it may be where it is large.
std::shared_ptr<Classifier> small_model(const std::string& name, ImageShape shape = {}) {
  return make_model(name, shape, name.starts_with("resnet") ? 32 : 0);
}

std::string message_of(const std::string& name, ImageShape shape, std::int64_t hidden = 0) {
  return expect_error(ErrorCode::InvalidArgument, {}, [&] { make_model(name, shape, hidden); })
      .what();
}

TEST(Models, ParametersHaveTheirDocumentedNamesAndShapes) {
  using Shapes = std::map<std::string, std::vector<std::int64_t>>;
  EXPECT_EQ(parameter_shapes("cnn"), (Shapes{{"conv1.weight", {32, 1, 3, 3}},
                                             {"conv1.bias", {32}},
                                             {"conv2.weight", {64, 32, 3, 3}},
                                             {"conv2.bias", {64}},
                                             {"fc1.weight", {128, 64 * 7 * 7}},
                                             {"fc1.bias", {128}},
                                             {"fc2.weight", {10, 128}},
                                             {"fc2.bias", {10}}}));
  EXPECT_EQ(parameter_shapes("mlp"), (Shapes{{"fc1.weight", {256, 784}},
                                             {"fc1.bias", {256}},
                                             {"fc2.weight", {256, 256}},
                                             {"fc2.bias", {256}},
                                             {"fc3.weight", {10, 256}},
                                             {"fc3.bias", {10}}}));
  EXPECT_EQ(parameter_shapes("linear"), (Shapes{{"fc.weight", {10, 784}}, {"fc.bias", {10}}}));
}

TEST(Models, HiddenLayersHaveTheWidthAskedFor) {
  auto mlp = parameter_shapes("mlp", 12);
  EXPECT_EQ(mlp["fc1.weight"], (std::vector<std::int64_t>{12, 784}));
  EXPECT_EQ(mlp["fc2.weight"], (std::vector<std::int64_t>{12, 12}));
  EXPECT_EQ(mlp["fc3.weight"], (std::vector<std::int64_t>{10, 12}));
  EXPECT_EQ(parameter_shapes("cnn", 12)["fc1.weight"], (std::vector<std::int64_t>{12, 64 * 7 * 7}));
  EXPECT_THROW(make_model("linear", {}, 12), Error);
  EXPECT_THROW(make_model("mlp", {}, -1), Error);
}

TEST(Models, EachTakesOtherShapesTypesAndEmptyBatches) {
  const ImageShape shape{.channels = 3, .height = 9, .width = 14, .classes = 7};
  for (const std::string& name : model_names()) {
    for (const torch::Dtype dtype : {torch::kFloat32, torch::kFloat64}) {
      for (const std::int64_t batch : {0, 1, 5}) {
        SCOPED_TRACE(name + ", batch of " + std::to_string(batch));
        auto model = small_model(name, shape);
        model->to(dtype);
        const auto x = torch::randn({batch, 3, 9, 14}, dtype);
        const auto logits = model->forward(x);
        EXPECT_EQ(logits.sizes().vec(), (std::vector<std::int64_t>{batch, 7}));
        EXPECT_EQ(logits.scalar_type(), dtype);
        logits.sum().backward();
        for (const auto& parameter : model->parameters()) {
          ASSERT_TRUE(parameter.grad().defined());
          EXPECT_EQ(parameter.grad().scalar_type(), dtype);
        }
      }
    }
  }
}

TEST(Models, UnitsHaveTheModulesNames) {
  for (const auto& name : model_names()) {
    const auto classifier = small_model(name);
    std::vector<std::string> of_module, of_units;
    for (const auto& item : classifier->named_parameters()) of_module.push_back(item.key());
    for (const auto& item : classifier->units().named_parameters()) of_units.push_back(item.name);
    EXPECT_EQ(of_units, of_module);
  }
}

TEST(Models, ErrorsSayWhatWouldWork) {
  EXPECT_THAT(message_of("cmn", {}), testing::HasSubstr("did you mean 'cnn'"));
  EXPECT_THAT(message_of("liner", {}), testing::HasSubstr("did you mean 'linear'"));
  EXPECT_THAT(message_of("cnn", {.height = 3}), testing::HasSubstr("at least 4x4"));
  EXPECT_THAT(message_of("resnet19", {}), testing::HasSubstr("did you mean 'resnet18'"));
  EXPECT_THAT(message_of("resnet18", {.width = 7}), testing::HasSubstr("at least 8x8"));
  EXPECT_THAT(message_of("resnet50", {}, 48), testing::HasSubstr("a multiple of 32"));
  EXPECT_THAT(message_of("mlp", {.channels = 0}), testing::HasSubstr("at least 1"));
}

}  // namespace
}  // namespace bimetal::models

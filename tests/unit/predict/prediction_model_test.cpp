#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/api/include/torch/optim.h>
#include <torch/csrc/api/include/torch/types.h>
#include <torch/csrc/api/include/torch/utils.h>

#include <thread>

#include "bimetal/base/deadline.h"
#include "bimetal/base/error.h"
#include "bimetal/checkpoint/starting_point.h"
#include "bimetal/predict/checkpoint_weights.h"
#include "bimetal/predict/predict.h"
#include "support/temporary_folder.h"

namespace bimetal::predict {
namespace {

using std::chrono::milliseconds;

checkpoint::ModelDescription described(const std::string& name,
                                       const std::string& dtype = "float64") {
  return {.name = name, .height = 12, .width = 12, .dtype = dtype, .mean = {0.3}, .stddev = {0.4}};
}

class FixedWeights : public WeightsSource {
 public:
  explicit FixedWeights(const checkpoint::ModelDescription& description)
      : model(checkpoint::make_described_model(description)) {}
  PredictionWeights newest() override { return {model, {5, 6}}; }
  task::Model model;
};

std::span<const std::byte> bytes_of(const torch::Tensor& tensor) {
  return {static_cast<const std::byte*>(tensor.const_data_ptr()), tensor.nbytes()};
}

/// Each sample by itself, as the job would compute it.
torch::Tensor one_by_one(const task::Model& model, const torch::Tensor& normalised) {
  const torch::NoGradGuard no_grad;
  std::vector<torch::Tensor> all;
  for (std::int64_t i = 0; i < normalised.size(0); ++i) {
    all.push_back(task::run_units(model, {normalised.narrow(0, i, 1)}).at(0));
  }
  return torch::cat(all).to(torch::kFloat64);
}

double farthest(const torch::Tensor& a, const torch::Tensor& b) {
  return (a - b).abs().max().item<double>();
}

TEST(PredictionModel, ABatchOfAllTypesIsWhatTheModelSaysOfEachSampleAlone) {
  const auto pixels = torch::randint(256, {9, 1, 12, 12}, torch::kUInt8);
  const auto normalised = (pixels.to(torch::kFloat64) / 255 - 0.3) / 0.4;
  for (const auto* name : {"cnn", "mlp", "linear"}) {
    for (const auto* dtype : {"float64", "float32"}) {
      const auto description = described(name, dtype);
      FixedWeights weights(description);
      const bool wide = description.dtype == "float64";
      const auto type = wide ? torch::kFloat64 : torch::kFloat32;
      PredictionModel model(description, {torch::kCPU, type}, 1.0, weights);
      const auto doubles = normalised.narrow(0, 4, 3).contiguous();
      const auto floats = normalised.narrow(0, 7, 2).to(torch::kFloat32).contiguous();
      const std::vector<serving::Samples> parts = {
          {comm::DType::uint8, 4, bytes_of(pixels).first(4 * 144)},
          {comm::DType::float64, 3, bytes_of(doubles)},
          {comm::DType::float32, 2, bytes_of(floats)}};
      std::vector<double> logits(90);
      EXPECT_EQ(model.answer(parts, logits), (serving::WeightsVersion{5, 6}));
      auto inputs = normalised.clone();
      inputs.narrow(0, 7, 2).copy_(floats);
      const auto alone = one_by_one(weights.model, inputs.to(type));
      const auto said = torch::from_blob(logits.data(), {9, 10}, torch::kFloat64);
      EXPECT_LT(farthest(said, alone), wide ? 1e-12 : 1e-4) << name << " in " << dtype;
      EXPECT_GT(farthest(said[0], said[1]), 1e-3) << "samples differ";
    }
  }
}

TEST(PredictionModel, PausesForComputingAlone) {
  struct SlowWeights : FixedWeights {
    using FixedWeights::FixedWeights;
    PredictionWeights newest() override {
      std::this_thread::sleep_for(milliseconds(300));
      return FixedWeights::newest();
    }
  };
  const auto description = described("linear");
  SlowWeights weights(description);
  PredictionModel model(description, {torch::kCPU, torch::kFloat64}, 0.1, weights);
  const auto pixels = torch::zeros({1, 1, 12, 12}, torch::kUInt8);
  std::vector<double> logits(10);
  const Stopwatch watch;
  model.answer(std::vector<serving::Samples>{{comm::DType::uint8, 1, bytes_of(pixels)}}, logits);
  EXPECT_LT(watch.seconds(), 1.5);  // with a pause for the weights, 3 s
}

TEST(PredictionModel, NormalisesEachChannelAsTrainingDid) {
  auto description = described("mlp", "float64");
  description.channels = 3;
  description.mean = {0.2, 0.4, 0.6};
  description.stddev = {0.5, 0.25, 1};
  FixedWeights weights(description);
  PredictionModel model(description, {torch::kCPU, torch::kFloat64}, 1.0, weights);
  const auto pixels = torch::randint(256, {2, 3, 12, 12}, torch::kUInt8);
  const auto mean = torch::tensor(description.mean, torch::kFloat64).view({3, 1, 1});
  const auto stddev = torch::tensor(description.stddev, torch::kFloat64).view({3, 1, 1});
  std::vector<double> logits(20);
  model.answer(std::vector<serving::Samples>{{comm::DType::uint8, 2, bytes_of(pixels)}}, logits);
  const auto alone = one_by_one(weights.model, (pixels.to(torch::kFloat64) / 255 - mean) / stddev);
  EXPECT_LT(farthest(torch::from_blob(logits.data(), {2, 10}, torch::kFloat64), alone), 1e-12);
  EXPECT_EQ(model.facts().stddev, description.stddev);
}

TEST(PredictionModel, SaysWhatItTakes) {
  const auto description = described("mlp", "float32");
  FixedWeights weights(description);
  const PredictionModel model(description, {}, 1.0, weights);
  const auto facts = model.facts();
  EXPECT_EQ(facts.model, "mlp");
  EXPECT_EQ(facts.values_per_sample(), 144);
  EXPECT_EQ(facts.classes, 10);
  EXPECT_EQ(facts.mean, std::vector<double>{0.3});
  EXPECT_EQ(facts.dtype, comm::DType::float32);
}

TEST(PredictionModel, ItsMakingDrawsNothingFromTheGeneratorThatTrainingUses) {
  torch::manual_seed(3);
  const auto before = checkpoint::random_state();
  checkpoint::make_described_model(described("cnn"));
  EXPECT_EQ(checkpoint::random_state(), before);
}

class SavedModels : public ::testing::Test {
 protected:
  /// A checkpoint whose parameters all are `value`.
  std::filesystem::path save(
      double value, std::int64_t step,
      std::optional<checkpoint::ModelDescription> description = described("linear")) {
    const auto model = checkpoint::make_described_model(described("linear"));
    const torch::NoGradGuard no_grad;
    for (auto& parameter : model.parameters()) parameter.fill_(value);
    torch::optim::SGD sgd(model.parameters(), torch::optim::SGDOptions(0.1));
    return checkpoint::save_checkpoint(folder_.path(), model, sgd,
                                       {.step = step, .model = description}, 2);
  }
  static double value_of(const PredictionWeights& weights) {
    return weights.model.parameters().front().mean().item<double>();
  }

  test::TemporaryFolder folder_;
};

TEST_F(SavedModels, AreUsedWithoutTheirJob) {
  const auto path = save(0.5, 7);
  const auto saved = checkpoint::load_saved_model(folder_.path());
  EXPECT_EQ(saved.path, path);
  EXPECT_EQ(saved.step, 7);
  EXPECT_EQ(saved.description, described("linear"));
  EXPECT_EQ(saved.model.parameters().front().scalar_type(), torch::kFloat64);
  EXPECT_EQ(value_of({saved.model, {}}), 0.5);
}

TEST_F(SavedModels, OneThatDoesNotSayWhichModelItHoldsIsRefused) {
  save(0.5, 7, std::nullopt);
  try {
    checkpoint::load_saved_model(folder_.path());
    FAIL() << "it was taken";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::Unsupported);
    EXPECT_THAT(error.what(), ::testing::HasSubstr("--resume"));
  }
}

TEST_F(SavedModels, TheNewestIsTakenAsItComesAndAnotherModelIsNot) {
  save(1, 7);
  CheckpointWeights weights(folder_.path(), milliseconds(5));
  weights.move_to(torch::kCPU);
  const auto first = weights.newest();
  EXPECT_EQ(value_of(first), 1);
  EXPECT_EQ(first.version, (serving::WeightsVersion{7, 7}));
  save(2, 3);  // a job that began anew in the same folder
  for (const auto end = Deadline::after(std::chrono::seconds(30));
       weights.newest().version.newest != 3 && !end.expired();) {
    std::this_thread::sleep_for(milliseconds(1));
  }
  EXPECT_EQ(value_of(weights.newest()), 2);
  EXPECT_EQ(value_of(first), 1) << "who computes goes on with what it has";
  auto other = described("linear");
  other.mean = {0.9};
  save(3, 11, other);
  std::this_thread::sleep_for(milliseconds(100));
  EXPECT_EQ(value_of(weights.newest()), 2);
}

TEST_F(SavedModels, ACheckpointByItselfStaysTheOne) {
  const auto path = save(1, 7);
  CheckpointWeights weights(path, milliseconds(1));
  weights.move_to(torch::kCPU);
  save(2, 8);
  std::this_thread::sleep_for(milliseconds(50));
  EXPECT_EQ(weights.newest().version.newest, 7);
}

}  // namespace
}  // namespace bimetal::predict

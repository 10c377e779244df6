// Jobs that compute in less than float32.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/api/include/torch/types.h>

#include <chrono>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <thread>
#include <vector>

#include "bimetal/base/error.h"
#include "bimetal/checkpoint/checkpoint.h"
#include "bimetal/train/choose_precision.h"
#include "bimetal/train/share/compute.h"
#include "support/errors.h"
#include "unit/train/training_job.h"

namespace bimetal::train {
namespace {

using test::parameters_of;
using ::testing::HasSubstr;

/// Of 20 steps, with equal shares.
class PrecisionJob : public test::CheckpointedJob {
 protected:
  PrecisionJob() : images_(300, 50) {
    job_ = test::small_job(images_);
    job_.parallel.balance = balance::Policy::Equal;
    job_.train.dtype = "float32";
    job_.train.evaluate = false;
  }

  test::SyntheticImages images_;
};

nlohmann::json scaler_of(const std::filesystem::path& checkpoint) {
  return nlohmann::json::parse(std::ifstream(checkpoint / "state.json")).at("loss_scaler");
}

TEST_F(PrecisionJob, ResumesWithItsLossScaleBitForBit) {
  job_.train.precision = "float16";
  job_.model.name = "mlp";
  const auto whole = train("whole", 2);
  const auto scale = last_.reports[0].loss_scale;
  const auto part = train("part", 2, 13);
  const auto rest = train("rest", 2, 0, part);
  ASSERT_TRUE(scale && last_.reports[0].loss_scale);
  EXPECT_EQ(last_.reports[0].loss_scale->scale, scale->scale);
  EXPECT_EQ(last_.reports[0].loss_scale->skipped_steps, scale->skipped_steps);
  const auto scaler = scaler_of(whole);
  EXPECT_EQ(scaler_of(rest), scaler);
  EXPECT_EQ(scaler.at("growth_steps").get<int>() + scaler.at("skipped").get<int>(), 20);
  const auto expected = parameters_of(whole), resumed = parameters_of(rest);
  for (const auto& [name, tensor] : expected) EXPECT_TRUE(tensor.equal(resumed.at(name))) << name;
}

TEST_F(PrecisionJob, AFixedScaleThatIsTooLargeEndsTheJob) {
  job_.train.precision = "float16";
  job_.train.loss_scale = 1e9;
  expect_error(ErrorCode::NotFinite, {"step 10: ", "train.loss_scale = 0"},
               [&] { train("fixed", 2); });
}

TEST_F(PrecisionJob, AutoMeasures) {
  job_.train.precision = "auto";
  train("auto", 1);
  EXPECT_THAT(last_.reports[0].workers[0].precision, ::testing::AnyOf("float32", "bfloat16"));
  job_.train.dtype = "float64";
  train("float64", 1);
  EXPECT_EQ(last_.reports[0].workers[0].precision, "float32");
}

TEST_F(PrecisionJob, Tf32IsRefusedOnACpuAndMayBeOneWorkersOwn) {
  job_.train.precision = "tf32";
  expect_error(ErrorCode::Unsupported, {"Ampere", "--worker cpu:precision=float32"},
               [&] { train("refused", 1); });
  train("other", 1, 1, {}, {"cpu:threads=1,precision=float32"});
  EXPECT_EQ(last_.reports[0].workers[0].precision, "float32");
}

/// Images of any numbers.
struct SomeImages : task::Dataset {
  std::int64_t size() const override { return 8; }
  task::Values batch(std::span<const std::int64_t> samples) const override {
    const auto count = std::ssize(samples);
    return {torch::ones({count, 3, 5, 5}), torch::zeros({count})};
  }
};

/// A convolution that writes down how the images lie that it gets, and takes its time with those
/// that lie in the way it is slow at.
class LookingTask : public task::Task {
 public:
  explicit LookingTask(std::optional<bool> slow_at_last = {}) : slow_at_last_(slow_at_last) {}

  task::Model make_model() const override {
    const auto weight = torch::full({2, 3, 3, 3}, 0.1).requires_grad_();
    return {{{.name = "conv",
              .parameters = {{"weight", weight}},
              .forward = [this, weight](const task::Values& inputs) -> task::Values {
                const auto format = inputs[0].suggest_memory_format();
                last_.push_back(format == torch::MemoryFormat::ChannelsLast);
                if (slow_at_last_ == last_.back()) {
                  std::this_thread::sleep_for(std::chrono::milliseconds(50));
                }
                return {torch::conv2d(inputs[0], weight)};
              }}}};
  }
  std::shared_ptr<const task::Dataset> training() const override {
    return std::make_shared<SomeImages>();
  }
  torch::Tensor loss_sum(const task::Values& outputs, const task::Values&) const override {
    return outputs[0].sum();
  }
  mutable std::vector<bool> last_;

 private:
  std::optional<bool> slow_at_last_;
};

TEST(MemoryFormat, ConvolutionsGetImagesAsAsked) {
  const LookingTask task;
  for (const bool channels_last : {false, true}) {
    Compute compute(task, task.make_model(), torch::kCPU, {.channels_last = channels_last});
    const auto images = torch::arange(2.0 * 3 * 5 * 5).reshape({2, 3, 5, 5});
    compute.run({images, torch::zeros({2})}, [](const auto& loss, bool) { loss.backward(); });
    EXPECT_EQ(task.last_.back(), channels_last);
  }
}

TEST(MemoryFormat, AutoTakesWhatIsFasterAndSaysSo) {
  job::JobConfig job;
  job.train.memory_format = "auto";
  job.train.global_batch = 4;
  for (const bool slow_at_last : {false, true}) {
    const LookingTask task(slow_at_last);
    test::Recorder recorder;
    const auto chosen =
        choose_channels_last(job, {}, task, precision::Precision::float32, recorder);
    EXPECT_EQ(chosen, !slow_at_last);
    EXPECT_THAT(recorder.notices, ::testing::SizeIs(slow_at_last ? 0 : 1));
  }
}

// Also where stages hand images on, and where ranks have shards of the parameters.
TEST_F(PrecisionJob, ChannelsLastLearnsTheSame) {
  job_.model.name = "cnn";
  job_.train.dtype = "float64";
  job_.train.steps = 6;
  const auto expected = parameters_of(train("contiguous", 1, 6));
  job_.train.memory_format = "channels_last";
  EXPECT_LE(test::relative_difference(expected, parameters_of(train("alone", 1, 6))), 1e-12);
  EXPECT_LE(test::relative_difference(expected, parameters_of(train("two", 2, 6))), 1e-12);
  // Each rank saves its part; a lone one goes on from all of them.
  const auto alone = job_;
  const auto later = parameters_of(train("later", 1, 8));
  const auto expect_alike = [&](const std::string& name) {
    const auto saved = train(name, 2, 6);
    job_ = alone;
    const auto rest = parameters_of(train(name + "-rest", 1, 8, saved));
    EXPECT_LE(test::relative_difference(later, rest), 1e-12) << name;
  };
  job_.mesh.stages = 2;
  expect_alike("stages");
  job_.zero.level = 3;
  expect_alike("shards");
}

TEST_F(PrecisionJob, WhatCannotWorkIsRefused) {
  job_.train.precision = "bfloat16";
  job_.train.dtype = "float64";
  EXPECT_THROW(train("refused", 1), Error);
}

// Checkpoints of releases that knew no scaler say nothing of one.
TEST_F(PrecisionJob, BeginsWithItsScaleAfterAFloat32Run) {
  const auto part = train("part", 1, 5);
  job_.train.precision = "float16";
  train("rest", 1, 0, part);
  ASSERT_TRUE(last_.reports[0].loss_scale);
  EXPECT_LE(last_.reports[0].loss_scale->scale, 65536);
}

}  // namespace
}  // namespace bimetal::train

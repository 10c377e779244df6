#include "bimetal/optim/optimizers.h"

#include <gtest/gtest.h>
#include <torch/csrc/api/include/torch/optim.h>
#include <torch/csrc/api/include/torch/types.h>

#include "bimetal/base/error.h"
#include "bimetal/checkpoint/optimizer_state.h"
#include "bimetal/optim/fused.h"
#include "unit/optim/optimizers_alike.h"

namespace bimetal::optim {
namespace {

using Json = nlohmann::ordered_json;

job::TrainConfig config_of(const std::string& optimizer) {
  job::TrainConfig config;
  config.optimizer = optimizer;
  config.learning_rate = 0.25;
  config.momentum = 0.5;
  config.weight_decay = 0.125;
  config.beta1 = 0.75;
  config.beta2 = 0.875;
  config.epsilon = 0.0625;
  config.trust_coefficient = 2;
  return config;
}

Json settings_of(const job::TrainConfig& config) {
  return checkpoint::optimizer_settings(*make_optimizer(config, {torch::ones({2, 2})}))[0];
}

TEST(Optimizers, GetEveryKeyThatIsMeantForThem) {
  for (const std::string name : {"sgd", "lars"}) {
    const auto settings = settings_of(config_of(name));
    EXPECT_EQ(settings["learning_rate"], 0.25) << name;
    EXPECT_EQ(settings["momentum"], 0.5) << name;
    EXPECT_EQ(settings["weight_decay"], 0.125) << name;
  }
  EXPECT_EQ(settings_of(config_of("lars"))["trust_coefficient"], 2);
  for (const std::string name : {"adam", "adamw", "lamb"}) {
    const auto settings = settings_of(config_of(name));
    EXPECT_EQ(settings["learning_rate"], 0.25) << name;
    EXPECT_EQ(settings["beta1"], 0.75) << name;
    EXPECT_EQ(settings["beta2"], 0.875) << name;
    EXPECT_EQ(settings["epsilon"], 0.0625) << name;
    EXPECT_EQ(settings["weight_decay"], 0.125) << name;
  }
}

TEST(Optimizers, HaveTheUsualDefaults) {
  job::TrainConfig config;
  for (const std::string name : {"adam", "adamw", "lamb"}) {
    config.optimizer = name;
    const auto settings = settings_of(config);
    EXPECT_EQ(settings["beta1"], 0.9) << name;
    EXPECT_EQ(settings["beta2"], 0.999) << name;
    EXPECT_EQ(settings["epsilon"], name == "lamb" ? 1e-6 : 1e-8);
    EXPECT_EQ(settings["weight_decay"], 0) << name;
  }
  config.optimizer = "lars";
  EXPECT_EQ(settings_of(config)["momentum"], 0.9);
  EXPECT_EQ(settings_of(config)["trust_coefficient"], 0.001);
}

TEST(Optimizers, AdamOnTheCpuMergesWhatItCan) {
  const auto merges = [](const std::string& name, const torch::Tensor& parameter) {
    const auto made = make_optimizer(config_of(name), {parameter});
    return dynamic_cast<MergedUpdate*>(made.get()) != nullptr;
  };
  for (const std::string name : {"adam", "adamw"}) {
    EXPECT_TRUE(merges(name, torch::ones({4, 2}))) << name;
    EXPECT_FALSE(merges(name, torch::ones({4, 2}).t())) << name;
    EXPECT_FALSE(merges(name, torch::ones({4}, torch::kBFloat16))) << name;
  }
  EXPECT_FALSE(merges("sgd", torch::ones({4, 2})));
}

TEST(Optimizers, SayWhetherTheyNeedWholeTensors) {
  for (const std::string name : {"sgd", "adam", "adamw"}) {
    EXPECT_FALSE(needs_whole_tensors(config_of(name))) << name;
  }
  for (const std::string name : {"lars", "lamb"}) {
    EXPECT_TRUE(needs_whole_tensors(config_of(name))) << name;
  }
}

TEST(Optimizers, DecayMatricesAloneWhereAskedTo) {
  for (const std::string name : {"sgd", "lars", "adam", "adamw", "lamb"}) {
    auto config = config_of(name);
    config.decay_on = "matrices";
    EXPECT_TRUE(needs_whole_tensors(config)) << name;
    const auto matrix = torch::ones({2, 2}), bias = torch::ones({2});
    const auto optimizer = make_optimizer(config, {bias, matrix});
    const auto settings = checkpoint::optimizer_settings(*optimizer);
    ASSERT_EQ(settings.size(), 2u) << name;
    EXPECT_EQ(settings[0]["weight_decay"], 0.125) << name;
    EXPECT_EQ(settings[1]["weight_decay"], 0) << name;
    EXPECT_EQ(settings[1]["learning_rate"], 0.25) << name;
    EXPECT_TRUE(optimizer->param_groups()[0].params()[0].is_same(matrix)) << name;
    EXPECT_TRUE(optimizer->param_groups()[1].params()[0].is_same(bias)) << name;
  }
}

TEST(Optimizers, RefuseUnknownNames) {
  EXPECT_THROW(make_optimizer(config_of("lion"), {torch::ones({2, 2})}), Error);
  EXPECT_THROW(needs_whole_tensors(config_of("lion")), Error);
}

// The fused updates are libtorch's own, and so are their states.
TEST(Fused, AdamIsLibtorchs) {
  expect_alike<FusedAdam, torch::optim::Adam>(torch::optim::AdamOptions(0.01).weight_decay(0.1));
}

TEST(Fused, AdamWIsLibtorchs) {
  expect_alike<FusedAdamW, torch::optim::AdamW>(torch::optim::AdamWOptions(0.01).weight_decay(0.1));
}

TEST(Fused, AmsgradGoesItsOwnWay) {
  expect_alike<FusedAdamW, torch::optim::AdamW>(torch::optim::AdamWOptions(0.01).amsgrad(true));
}

TEST(Fused, SgdIsLibtorchs) {
  expect_alike<FusedSgd, torch::optim::SGD>(torch::optim::SGDOptions(0.1).weight_decay(0.01));
  expect_alike<FusedSgd, torch::optim::SGD>(
      torch::optim::SGDOptions(0.1).momentum(0.9).weight_decay(0.01));
  expect_alike<FusedSgd, torch::optim::SGD>(
      torch::optim::SGDOptions(0.1).momentum(0.9).nesterov(true));
}

TEST(Fused, PartsOfStepsAreLibtorchs) {
  expect_alike<FusedSgd, torch::optim::SGD>(torch::optim::SGDOptions(0.1).momentum(0.9), 0.25);
  expect_alike<FusedAdam, torch::optim::Adam>(torch::optim::AdamOptions(0.01), 0.25);
}

// A gradient may lie in memory in another order than its parameter.
TEST(Fused, TensorsOfOtherLayoutsGoLibtorchsWay) {
  const auto make = [] { return Tensors{torch::arange(12.0).view({3, 4}).t()}; };
  const auto a = make(), b = make();
  FusedSgd ours(a, torch::optim::SGDOptions(0.5));
  torch::optim::SGD theirs(b, torch::optim::SGDOptions(0.5));
  for (auto parameter : {a[0], b[0]}) parameter.mutable_grad() = torch::arange(12.0).view({4, 3});
  ours.step();
  theirs.step();
  EXPECT_TRUE(a[0].equal(b[0]));
}

}  // namespace
}  // namespace bimetal::optim

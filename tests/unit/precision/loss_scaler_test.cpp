// That it decides as torch's does: tests/python/test_grad_scaler.py.
#include "bimetal/precision/loss_scaler.h"

#include <gtest/gtest.h>
#include <torch/csrc/api/include/torch/types.h>
#include <torch/csrc/api/include/torch/utils.h>

#include <limits>
#include <random>

namespace bimetal::precision {
namespace {

TEST(LossScaler, BeginsAsTorchsDoes) {
  LossScaler scaler(scaler_options({}));
  EXPECT_EQ(scaler.scale(), 65536);
  scaler.update(true);
  EXPECT_EQ(scaler.scale(), 32768);
  for (int step = 0; step < 1999; ++step) scaler.update(false);
  EXPECT_EQ(scaler.scale(), 32768);
  scaler.update(false);
  EXPECT_EQ(scaler.scale(), 65536);
}

TEST(LossScaler, AnOverflowStartsTheCountAnew) {
  LossScaler scaler({.initial = 8, .interval = 3});
  for (const bool overflow : {false, false, true, false, false}) scaler.update(overflow);
  EXPECT_EQ(scaler.scale(), 4);
  scaler.update(false);
  EXPECT_EQ(scaler.scale(), 8);
}

TEST(LossScaler, NeverFallsBelowOneAndSaysWhenItCannot) {
  LossScaler scaler(scaler_options({}));
  for (int step = 0; step < 16; ++step) scaler.update(true);
  EXPECT_EQ(scaler.scale(), 1);
  EXPECT_EQ(scaler.stuck(), 0);
  EXPECT_EQ(scaler.falls(), 16);
  for (int step = 0; step < 200; ++step) scaler.update(true);
  EXPECT_EQ(scaler.scale(), 1);
  EXPECT_EQ(scaler.stuck(), 200);
  scaler.update(false);
  EXPECT_EQ(scaler.stuck(), 0);
  EXPECT_EQ(scaler.state().skipped, 216);
}

TEST(LossScaler, StaysWithinFloat32) {
  LossScaler scaler({.initial = std::numeric_limits<float>::max(), .interval = 1});
  scaler.update(false);
  EXPECT_EQ(scaler.scale(), std::numeric_limits<float>::max());
}

TEST(LossScaler, AFixedScaleStays) {
  job::TrainConfig config;
  config.loss_scale = 1024;
  LossScaler scaler(scaler_options(config));
  for (int step = 0; step < 3000; ++step) scaler.update(step % 7 == 0);
  EXPECT_EQ(scaler.scale(), 1024);
  scaler.restore({.scale = 2, .growth_steps = 1, .skipped = 3});
  EXPECT_EQ(scaler.scale(), 1024);
  EXPECT_EQ(scaler.state().skipped, 3);
}

TEST(LossScaler, IsWhatTheJobSays) {
  job::TrainConfig config;
  config.loss_scale_initial = 256;
  config.loss_scale_window = 3;
  config.loss_scale_hysteresis = 2;
  config.loss_scale_min = 64;
  LossScaler scaler(scaler_options(config));
  EXPECT_EQ(scaler.scale(), 256);
  for (int step = 0; step < 3; ++step) scaler.update(false);
  EXPECT_EQ(scaler.scale(), 512);
  for (int step = 0; step < 9; ++step) scaler.update(true);
  EXPECT_EQ(scaler.scale(), 64);
}

TEST(LossScaler, ToleratesOverflowsUntilItGrowsAgain) {
  LossScaler scaler({.initial = 64, .interval = 2, .hysteresis = 3});
  for (const bool overflow : {true, false, true}) scaler.update(overflow);
  EXPECT_EQ(scaler.scale(), 64);
  EXPECT_EQ(scaler.falls(), 0);
  EXPECT_EQ(scaler.state().skipped, 2);
  scaler.update(true);  // the third
  EXPECT_EQ(scaler.scale(), 32);
  scaler.update(true);
  EXPECT_EQ(scaler.scale(), 16);
  for (const bool overflow : {false, false}) scaler.update(overflow);
  EXPECT_EQ(scaler.scale(), 32);
  for (const bool overflow : {true, true}) scaler.update(overflow);
  EXPECT_EQ(scaler.scale(), 32);
}

TEST(LossScaler, GoesOnWhereItWas) {
  const LossScalerOptions options{.initial = 64, .interval = 5, .hysteresis = 2};
  LossScaler whole(options), first(options), second(options);
  // The second of two overflows that nothing grows between comes after the restart.
  const auto overflow = [](int step) { return step % 13 == 0 || step == 43; };
  for (int step = 0; step < 100; ++step) whole.update(overflow(step));
  for (int step = 0; step < 42; ++step) first.update(overflow(step));
  second.restore(first.state());
  for (int step = 42; step < 100; ++step) second.update(overflow(step));
  EXPECT_EQ(second.state(), whole.state());
}

// Which the host learns later, and then has the same.
TEST(DeviceLossScale, DecidesAsTheHostsDoes) {
  std::mt19937 random(7);
  for (const auto& options :
       {LossScalerOptions{.interval = 3}, LossScalerOptions{.initial = 5, .interval = 2},
        LossScalerOptions{.initial = 0.25, .interval = 4, .least = 1},
        LossScalerOptions{.initial = std::numeric_limits<float>::max(), .interval = 1},
        LossScalerOptions{.initial = 1000, .growth = 1.7, .back_off = 0.3, .interval = 2},
        LossScalerOptions{.initial = 64, .dynamic = false}}) {
    LossScaler host(options);
    for (int i = 0; i < 5; ++i) host.update(i == 2);  // it goes on from anywhere
    DeviceLossScale device(host, torch::kCPU);
    for (int step = 0; step < 300; ++step) {
      const bool overflow = random() % (step < 150 ? 3 : 8) == 0;
      device.update(torch::tensor(overflow ? 1.0F : 0.0F));
      host.update(overflow);
      ASSERT_EQ(device.scale().item<double>(), host.scale()) << step;
    }
  }
}

}  // namespace
}  // namespace bimetal::precision

// That it decides as torch's does: tests/python/test_grad_scaler.py.
#include "bimetal/precision/loss_scaler.h"

#include <gtest/gtest.h>

#include <limits>

namespace bimetal::precision {
namespace {

TEST(LossScaler, BeginsAsTorchsDoes) {
  LossScaler scaler(scaler_options(0));
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
  LossScaler scaler(scaler_options(0));
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
  LossScaler scaler(scaler_options(1024));
  for (int step = 0; step < 3000; ++step) scaler.update(step % 7 == 0);
  EXPECT_EQ(scaler.scale(), 1024);
  scaler.restore({.scale = 2, .growth_steps = 1, .skipped = 3});
  EXPECT_EQ(scaler.scale(), 1024);
  EXPECT_EQ(scaler.state().skipped, 3);
}

TEST(LossScaler, GoesOnWhereItWas) {
  const LossScalerOptions options{.initial = 64, .interval = 5};
  LossScaler whole(options), first(options), second(options);
  const auto overflow = [](int step) { return step % 13 == 0; };
  for (int step = 0; step < 100; ++step) whole.update(overflow(step));
  for (int step = 0; step < 42; ++step) first.update(overflow(step));
  second.restore(first.state());
  for (int step = 42; step < 100; ++step) second.update(overflow(step));
  EXPECT_EQ(second.state(), whole.state());
}

}  // namespace
}  // namespace bimetal::precision

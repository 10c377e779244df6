// How often the hosts of two ranks wait for their devices in a step: waits_test.cpp, with others.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <map>
#include <string>
#include <vector>

#include "bimetal/base/error.h"
#include "support/errors.h"
#include "support/simulated_device.h"
#include "unit/train/learning_ranks.h"

namespace bimetal::train {
namespace {

using namespace test;
using bimetal::testing::SimulatedDevice;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

using Devices = std::array<torch::Device, 2>;

/// By rank: what two learn together.
std::vector<Learnt> learn_by_two(const Asked& asked, const Devices& devices) {
  std::vector<Learnt> learnt(2);
  bimetal::testing::run_ranks(2, [&](int rank, comm::Group group) {
    const auto at = static_cast<std::size_t>(rank);
    learnt[at] = learn(asked, devices[at], group);
  });
  return learnt;
}

void expect_as_alone(std::vector<Learnt> learnt, const Asked& asked) {
  const auto whole = alone(asked, torch::kCPU);
  for (auto& rank : learnt) {
    ASSERT_EQ(rank.figures.size(), whole.figures.size());
    for (std::size_t i = 0; i < whole.figures.size(); ++i) {
      EXPECT_GT(rank.figures[i].compute_seconds, 0);
      // A rank's own loss is of half of the samples, and its norm of shards of its part.
      rank.figures[i].loss_sum = whole.figures[i].loss_sum;
    }
    expect_alike(rank, whole, asked.level == 0 && asked.step.update.limits.norm > 0);
    EXPECT_EQ(rank.skipped, whole.skipped);
    EXPECT_EQ(rank.loss_scale, whole.loss_scale);
  }
}

/// The causes of two ranks' waits in a step, and how often each occurs. Counted in more steps than
/// there have been before, so that making models and reading them back is not among them.
std::map<std::string, double> waits_of_two(Asked asked, const Devices& devices) {
  std::vector<std::map<std::string, double>> waits;
  for (const std::int64_t epochs : {2, 3}) {
    asked.epochs = epochs;
    SimulatedDevice::take_waits();
    const auto learnt = learn_by_two(asked, devices);
    auto& found = waits.emplace_back();
    for (const auto& wait : SimulatedDevice::take_waits()) ++found[wait];
    expect_as_alone(learnt, asked);
  }
  std::map<std::string, double> in_a_step;
  for (const auto& [what, times] : waits[1]) {
    const double more = (times - waits[0][what]) / 2;
    if (more > 0) in_a_step[what] = more;
  }
  return in_a_step;
}

Devices both_on(const torch::Device& device) {
  return {device, device};
}

std::vector<UpdateOptions> all_updates() {
  return {UpdateOptions{}, UpdateOptions{.limits = {.norm = 0.1}},
          UpdateOptions{.limits = {.norm = 0.1, .value = 0.01}, .scaler = scaler()}};
}

// Buckets go out and come back by streams of their own, beside backward.
TEST(WaitsOfTwo, NoneOfTwoRanksWithReplicas) {
  const auto device = SimulatedDevice::install();
  for (const auto& update : all_updates()) {
    EXPECT_THAT(waits_of_two({.step = {.micro_batch = 2, .update = update}}, both_on(device)),
                IsEmpty());
  }
}

// The norm of shards is added up over the ranks, and so by the hosts.
TEST(WaitsOfTwo, OneOfTwoRanksWithShardsAndANorm) {
  const auto device = SimulatedDevice::install();
  for (const auto& update : all_updates()) {
    std::map<std::string, double> expected;
    if (update.limits.norm > 0) expected["aten::_local_scalar_dense"] = 2;  // one of each
    EXPECT_EQ(
        waits_of_two({.level = 1, .step = {.micro_batch = 2, .update = update}}, both_on(device)),
        expected);
  }
}

TEST(WaitsOfTwo, NoneOfTwoRanksWithRunningStatistics) {
  const auto device = SimulatedDevice::install();
  EXPECT_THAT(
      waits_of_two({.model = "resnet18", .optimizer = "sgd", .norm_group = 4}, both_on(device)),
      IsEmpty());
}

// A norm differs in its last bits from device to device: rank 0's counts, for which one waits.
TEST(WaitsOfTwo, OneOfADeviceBesideACpuForTheNorm) {
  const Devices devices = {torch::Device(torch::kCPU), SimulatedDevice::install()};
  for (const auto& update : all_updates()) {
    std::map<std::string, double> expected;
    if (update.limits.norm > 0) expected["aten::_local_scalar_dense"] = 1;
    EXPECT_EQ(waits_of_two({.step = {.update = update}}, devices), expected);
  }
}

TEST(WaitsOfTwo, TwoDevicesSkipWhatOverflows) {
  const auto device = SimulatedDevice::install();
  for (const std::string optimizer : {"sgd", "adamw", "lamb"}) {
    SCOPED_TRACE(optimizer);
    Asked asked;
    asked.optimizer = optimizer;
    asked.epochs = 6;
    asked.overflows = {1, 4, 5, 12};
    asked.step.update = {.limits = {.norm = 0.1}, .scaler = scaler()};
    const auto learnt = learn_by_two(asked, both_on(device));
    expect_as_alone(learnt, asked);
    EXPECT_THAT(learnt[0].skipped, ElementsAre(1, 4, 5, 12));
    EXPECT_EQ(learnt[0].late, optimizer != "lamb");
  }
}

TEST(WaitsOfTwo, AStepOfTwoThatDoesNotFitIsRepeated) {
  const auto device = SimulatedDevice::install();
  for (const auto& update : all_updates()) {
    Asked asked;
    asked.too_large = {3};
    asked.step.update = update;
    const auto learnt = learn_by_two(asked, both_on(device));
    for (const auto& rank : learnt) EXPECT_EQ(rank.repeated, 1);
    asked.too_large.clear();
    expect_as_alone(learnt, asked);
  }
}

TEST(WaitsOfTwo, WhatIsNotFiniteOnTwoDevicesNamesItsStep) {
  const auto device = SimulatedDevice::install();
  Asked asked;
  asked.step.update.limits.norm = 0.1;
  asked.spoilt = {2};
  const auto by_two = [&] { learn_by_two(asked, both_on(device)); };
  expect_error(ErrorCode::NotFinite, {"step 2: the loss of rank 0, 1 is not finite"}, by_two);
  asked.spoilt.clear();
  asked.overflows = {2};
  expect_error(ErrorCode::NotFinite,
               {"step 2: the gradients are not finite", "what they have updated is dropped"},
               by_two);
}

// Buckets stay on the devices, and nobody looks into them.
TEST(WaitsOfTwo, NoneOfTwoRanksOnAnIsland) {
  const auto device = SimulatedDevice::install();
  for (const int level : {0, 1}) {
    EXPECT_THAT(waits_of_two({.level = level, .island = true}, both_on(device)), IsEmpty());
  }
  // Whose ranks wait for each other in passes, and so read a loss at once. (One of each.)
  const std::map<std::string, double> of_losses = {{"a copy to the host", 2}};
  EXPECT_EQ(waits_of_two({.level = 2, .island = true}, both_on(device)), of_losses);
}

}  // namespace
}  // namespace bimetal::train

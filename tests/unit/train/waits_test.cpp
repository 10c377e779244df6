// How often the host waits for a device in a step, counted on a simulated one:
// docs/accelerators.md.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/api/include/torch/types.h>
#include <torch/csrc/api/include/torch/utils.h>

#include <array>
#include <chrono>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "bimetal/base/error.h"
#include "bimetal/data/prefetch.h"
#include "bimetal/device/probe.h"
#include "bimetal/task/catalog/job_task.h"
#include "bimetal/task/task.h"
#include "bimetal/train/measure/dry_run.h"
#include "bimetal/train/measure/step_probe.h"
#include "bimetal/train/step.h"
#include "support/errors.h"
#include "support/simulated_device.h"
#include "support/thread_ranks.h"
#include "unit/train/learning_ranks.h"
#include "unit/train/training_job.h"

namespace bimetal::train {
namespace {

using bimetal::testing::SimulatedDevice;
using namespace test;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

/// Learns what a CPU learns, and waits so often in each step, but for the first, in which the
/// optimizer's state is made and kernels may be chosen.
void expect_waits(std::size_t most, const Asked& asked) {
  const auto device = SimulatedDevice::install();
  std::vector<std::vector<std::string>> waits;
  std::vector<std::int64_t> unread;
  SimulatedDevice::take_waits();
  const auto learnt = alone(asked, device, [&](int) {
    waits.push_back(SimulatedDevice::take_waits());
    unread.push_back(SimulatedDevice::copies_under_way());
  });
  ASSERT_EQ(waits.size(), 2 * asked.epochs);
  for (std::size_t i = 1; i < waits.size(); ++i) EXPECT_THAT(waits[i], SizeIs(most)) << i + 1;
  EXPECT_EQ(learnt.late, most == 0);
  // Each step's numbers are on their way when the next one begins.
  if (learnt.late) {
    EXPECT_THAT(unread, Each(1));
  }
  ASSERT_EQ(learnt.figures.size(), 2 * asked.epochs);
  for (const auto& figures : learnt.figures) EXPECT_GT(figures.compute_seconds, 0);
  const auto expected = alone(asked, torch::kCPU);
  expect_alike(learnt, expected, asked.step.update.limits.norm > 0);
  EXPECT_EQ(learnt.skipped, expected.skipped);
  EXPECT_EQ(learnt.loss_scale, expected.loss_scale);
  EXPECT_EQ(learnt.repeated, expected.repeated);
}

TEST(Waits, NoneInAPlainStep) {
  for (const std::string optimizer : {"sgd", "adam", "adamw", "lars", "lamb"}) {
    SCOPED_TRACE(optimizer);
    expect_waits(0, {.optimizer = optimizer});
  }
}

TEST(Waits, NoneHoweverManyPieces) {
  expect_waits(0, {.step = {.micro_batch = 2}});
}

TEST(Waits, NoneWithTheNormOfTheGradients) {
  expect_waits(0, {.step = {.micro_batch = 4, .update = {.limits = {.norm = 0.1}}}});
  expect_waits(0, {.step = {.update = {.limits = {.norm = 0.1, .value = 0.01}}}});
}

TEST(Waits, NoneWithALossScale) {
  expect_waits(0, {.step = {.update = {.scaler = scaler()}}});
  expect_waits(0,
               {.step = {.micro_batch = 4,
                         .update = {.limits = {.norm = 0.1, .value = 0.01}, .scaler = scaler()}}});
}

// Those whose kernels know no step that the device leaves out, and a scale that counts overflows.
TEST(Waits, OneWhereTheHostDecidesOnTheLossScale) {
  expect_waits(1, {.optimizer = "lamb", .step = {.update = {.scaler = scaler()}}});
  expect_waits(1, {.step = {.update = {.scaler = precision::LossScalerOptions{.interval = 3,
                                                                              .hysteresis = 2}}}});
}

TEST(Waits, NoneWithRunningStatistics) {
  expect_waits(0, {.model = "resnet18", .optimizer = "sgd", .norm_group = 4});
}

// The device leaves out the update, halves the scale, and doubles it again, before the host knows.
TEST(Waits, TheDeviceSkipsWhatOverflows) {
  for (const std::string optimizer : {"sgd", "adam", "adamw", "lamb"}) {
    SCOPED_TRACE(optimizer);
    Asked asked;
    asked.optimizer = optimizer;
    asked.epochs = 6;
    asked.overflows = {1, 4, 5, 12};
    asked.step.update = {.limits = {.norm = 0.1}, .scaler = scaler()};
    expect_waits(optimizer == "lamb" ? 1 : 0, asked);
    const auto learnt = alone(asked, SimulatedDevice::install());
    EXPECT_THAT(learnt.skipped, ElementsAre(1, 4, 5, 12));
    EXPECT_EQ(learnt.loss_scale, 65536.0 / 16 * 4);
  }
}

TEST(Waits, ASkippedStepMovesNoRunningStatistics) {
  Asked asked;
  asked.model = "resnet18";
  asked.optimizer = "sgd";
  asked.norm_group = 4;
  asked.overflows = {1, 3};
  asked.step.update.scaler = scaler();
  const auto learnt = alone(asked, SimulatedDevice::install());
  const auto expected = alone(asked, torch::kCPU);
  EXPECT_TRUE(learnt.late);
  EXPECT_THAT(learnt.skipped, ElementsAre(1, 3));
  expect_alike(learnt, expected);
  ASSERT_EQ(learnt.buffers.size(), expected.buffers.size());
  for (std::size_t i = 0; i < expected.buffers.size(); ++i) {
    EXPECT_TRUE(learnt.buffers[i].allclose(expected.buffers[i], 1e-12, 1e-12)) << i;
  }
}

TEST(Waits, AStepThatDoesNotFitIsRepeatedBehindOneThatIsUnread) {
  for (const auto& update :
       {UpdateOptions{}, UpdateOptions{.limits = {.norm = 0.1}, .scaler = scaler()}}) {
    Asked asked;
    asked.too_large = {3};
    asked.step.update = update;
    const auto device = SimulatedDevice::install();
    const auto learnt = alone(asked, device);
    EXPECT_TRUE(learnt.late);
    EXPECT_EQ(learnt.repeated, 1);
    asked.too_large.clear();
    expect_alike(learnt, alone(asked, torch::kCPU), update.limits.norm > 0);
  }
}

// Though the host learns of it when the next step is on its way, or none comes any more.
TEST(Waits, ALossThatIsNotFiniteNamesItsStep) {
  const auto device = SimulatedDevice::install();
  for (const auto& update : {UpdateOptions{}, UpdateOptions{.limits = {.norm = 0.1}},
                             UpdateOptions{.scaler = scaler()}}) {
    for (const int step : {1, 3, 4}) {
      Asked asked;
      asked.spoilt = {step};
      asked.step.update = update;
      expect_error(ErrorCode::NotFinite,
                   {"step " + std::to_string(step) + ": the loss of rank 0 is not finite",
                    "what it has updated is dropped"},
                   [&] { alone(asked, device); });
    }
  }
}

TEST(Waits, GradientsThatAreNotFiniteNameTheirStep) {
  const auto device = SimulatedDevice::install();
  Asked asked;
  asked.overflows = {2};
  asked.step.update.limits.norm = 0.1;
  expect_error(ErrorCode::NotFinite,
               {"step 2: the gradients are not finite", "what they have updated is dropped"},
               [&] { alone(asked, device); });
}

/// A job by `worker`, with a checkpoint in the midst of its steps.
struct JobsRun {
  progress::Report report;
  test::Recorder told;
  std::map<std::string, torch::Tensor> middle, end;
};

JobsRun run_job_on(const std::string& worker, const test::SyntheticImages& images) {
  const test::TemporaryFolder folder;
  auto job = test::small_job(images);
  job.train.optimizer = "adamw";
  job.train.learning_rate = 0.01;
  job.train.clip_norm = 0.5;
  job.checkpoint.dir = folder.path().string();
  job.checkpoint.every_steps = 3;
  job.checkpoint.keep = 100;
  const auto run = test::run_job(job, 1, {.workers = {worker}});
  return {run.reports[0], run.recorders[0], test::parameters_of(run.recorders[0].checkpoints[0]),
          test::parameters_of(run.recorders[0].checkpoints.back())};
}

TEST(Waits, AJobTellsAndKeepsWhatOneOnACpuDoes) {
  SimulatedDevice::install();
  const test::SyntheticImages images(200, 40);
  const auto there = run_job_on("auto", images), here = run_job_on("cpu:threads=1", images);
  EXPECT_EQ(there.told.workers.at(0).device, "hpu:0");
  ASSERT_EQ(there.told.steps.size(), here.told.steps.size());
  for (std::size_t i = 0; i < here.told.steps.size(); ++i) {
    EXPECT_EQ(there.told.steps[i].step, here.told.steps[i].step);
    EXPECT_NEAR(there.told.steps[i].loss, here.told.steps[i].loss, 1e-12) << i;
    EXPECT_GT(there.told.steps[i].workers.at(0).compute_s, 0);
  }
  // The memory of tensors on the card, no more than a few kilobytes in this model.
  const double peak = there.report.workers.at(0).memory.peak;
  EXPECT_GT(peak, 0);
  EXPECT_LT(peak, here.report.workers.at(0).memory.peak / 10);
  EXPECT_EQ(there.told.checkpoints.size(), here.told.checkpoints.size());
  EXPECT_EQ(there.report.steps, here.report.steps);
  for (const auto& [a, b] :
       {std::pair(there.middle, here.middle), std::pair(there.end, here.end)}) {
    for (const auto& [name, tensor] : b) {
      EXPECT_TRUE(a.at(name).allclose(tensor, 1e-12, 1e-12)) << name;
    }
  }
}

// Batches come by a stream of their own from page-locked memory: asking for one waits for nothing.
TEST(Waits, NoneForBatches) {
  const auto device = SimulatedDevice::install();
  const task::ImageClassification task("mlp", 0, {noise(), noise()}, "float64");
  data::Prefetcher prefetcher(task.training(), device);
  const std::vector<std::int64_t> samples = {3, 1, 4};
  SimulatedDevice::take_waits();
  for (int i = 0; i < 3; ++i) {
    prefetcher.request(task::Draws::of(1, 0, samples));
    const auto batch = prefetcher.take();
    EXPECT_THAT(SimulatedDevice::take_waits(), IsEmpty());
    const auto expected = task.training()->batch(samples);
    EXPECT_TRUE(batch[0].to(torch::kCPU).equal(expected[0]));
    SimulatedDevice::take_waits();
  }
}

// Between units nobody waits, since that is not how steps are made: their seconds come of events.
TEST(Waits, OneForTheSecondsOfAllUnits) {
  const auto device = SimulatedDevice::install();
  const task::ImageClassification task("resnet18", 0, {noise(), noise()}, "float64",
                                       data::Augment::No, /*norm_group=*/4);
  const UnitMeasureOptions options{.on = {.device = device, .dtype = torch::kFloat64},
                                   .timed = Timed::passes};
  DryRun dry(task, options);
  SimulatedDevice::take_waits();
  const Stopwatch watch;
  const auto units = dry.run(4);
  const double seconds = watch.seconds();
  const auto waits = SimulatedDevice::take_waits();
  EXPECT_EQ(std::ranges::count(waits, std::string("the device")), dry.runs());
  EXPECT_LE(std::ssize(waits), 3 * dry.runs()) << "of the batch's two tensors, too";
  ASSERT_GT(units.size(), 4);
  double all = 0;
  for (const auto& unit : units) {
    EXPECT_GT(unit.forward_s, 0);
    EXPECT_GT(unit.backward_s, 0);
    all += unit.forward_s + unit.backward_s;
  }
  EXPECT_LE(all * (dry.runs() - 1), seconds);
}

TEST(CopySpeed, IsOfDevicesThatHaveTheirOwnMemory) {
  const auto speed = device::probe_copies(SimulatedDevice::install());
  ASSERT_TRUE(speed);
  EXPECT_GT(speed->latency_s, 0);
  EXPECT_GT(speed->to_device_bytes_per_s, 0);
  EXPECT_GT(speed->from_device_bytes_per_s, 0);
  EXPECT_FALSE(device::probe_copies(torch::kCPU));
}

// By which a plan lengthens the ways between them.
TEST(CopySpeed, OfEachRankIsKnownToAll) {
  const std::array<torch::Device, 2> devices = {SimulatedDevice::install(), torch::kCPU};
  bimetal::testing::run_ranks(2, [&](int rank, comm::Group group) {
    const auto mine = named_device(devices[static_cast<std::size_t>(rank)], {});
    const auto all = gather_devices(group, mine, Deadline::after(std::chrono::seconds(60)));
    ASSERT_EQ(all.size(), 2);
    EXPECT_GT(all[0].copies.latency_s, 0);
    EXPECT_GT(all[0].copies.out_s_per_byte, 0);
    EXPECT_GT(all[0].copies.in_s_per_byte, 0);
    EXPECT_EQ(all[1].copies.latency_s, 0);
    EXPECT_EQ(all[1].copies.out_s_per_byte, 0);
  });
}

}  // namespace
}  // namespace bimetal::train

// How often the host waits for a device in a step, counted on a simulated one:
// docs/accelerators.md.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/api/include/torch/types.h>
#include <torch/csrc/api/include/torch/utils.h>

#include <cmath>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "bimetal/base/error.h"
#include "bimetal/data/prefetch.h"
#include "bimetal/device/probe.h"
#include "bimetal/optim/optimizers.h"
#include "bimetal/task/catalog/image_classification.h"
#include "bimetal/task/model_state.h"
#include "bimetal/train/measure/dry_run.h"
#include "bimetal/train/step.h"
#include "support/errors.h"
#include "support/simulated_device.h"
#include "support/thread_ranks.h"
#include "unit/train/training_job.h"

namespace bimetal::train {
namespace {

using bimetal::testing::SimulatedDevice;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr std::int64_t kSamples = 8;

data::ImageDataset noise() {
  data::ImageDataset set;
  const auto numbers = torch::arange(16 * 8 * 8);
  set.images = (numbers * 37).remainder(251).to(torch::kUInt8).view({16, 1, 8, 8});
  set.labels = torch::arange(16).remainder(10);
  return set;
}

struct Asked {
  std::string model = "mlp";
  std::string optimizer = "adamw";
  std::int64_t norm_group = 0;
  std::int64_t epochs = 2;  ///< of two steps
  StepOptions step = {};
  std::set<int> overflows = {};  ///< steps with a gradient that is not finite
  std::set<int> too_large = {};  ///< steps for which, at first, there is no memory in backward
  std::set<int> spoilt = {};     ///< steps with a parameter that is no number, and so a loss
};

/// What a rank has after some steps, with batches from the job's own feed.
struct Learnt {
  std::vector<torch::Tensor> parameters, buffers;
  std::vector<progress::RankFigures> figures;  ///< the rank's, of each step
  std::vector<int> skipped;                    ///< steps
  int repeated = 0;
  double loss_scale = 1;
  bool late = false;  ///< what became of a step was learnt after the next one's launch
};

/// Does to step `number` what was asked for.
void disturb(const Asked& asked, const std::shared_ptr<const int>& number,
             const torch::Tensor& parameter) {
  const auto refused = std::make_shared<std::set<int>>();
  parameter.register_hook([=](const torch::Tensor& gradient) {
    if (asked.too_large.contains(*number) && refused->insert(*number).second) {
      C10_THROW_ERROR(OutOfMemoryError, "of the simulated device");
    }
    return asked.overflows.contains(*number) ? gradient * std::numeric_limits<double>::infinity()
                                             : gradient;
  });
}

Learnt learn(const Asked& asked, const torch::Device& device, comm::Group group,
             const std::function<void(int step)>& after_step = {}) {
  const task::ImageClassification task(asked.model, 0, {noise(), noise()}, "float64",
                                       data::Augment::No, asked.norm_group);
  torch::manual_seed(3);
  const auto model = task.make_model();
  model.to(device, torch::kFloat64);
  job::TrainConfig config;
  config.optimizer = asked.optimizer;
  config.learning_rate = 0.01;
  config.weight_decay = 0.1;
  auto parameters = model.parameters();
  const auto number = std::make_shared<int>(1);
  disturb(asked, number, parameters.front());
  const auto optimizer = optim::make_optimizer(config, parameters);
  auto options = asked.step;
  options.device = device;
  options.parallel.timeout = std::chrono::seconds(60);
  TrainingStep step(task, model, *optimizer, group, options);
  data::BatchFeed feed(task.training(), data::make_sampler(*task.training(), 1), group.rank(),
                       kSamples, asked.epochs, device);
  const std::vector<std::int64_t> shares(static_cast<std::size_t>(group.size()),
                                         kSamples / group.size());
  Learnt learnt;
  const auto note = [&](const std::optional<EarlierStep>& known) {
    if (!known) return;
    EXPECT_EQ(known->number, std::ssize(learnt.figures) + 1);
    learnt.figures.push_back(known->figures);
    if (known->skipped) learnt.skipped.push_back(static_cast<int>(known->number));
  };
  feed.draw(shares);
  while (feed.next()) {
    const auto plan = *feed.next();
    if (asked.spoilt.contains(*number)) {
      const torch::NoGradGuard no_grad;
      parameters.front().fill_(std::numeric_limits<double>::quiet_NaN());
    }
    const auto result = step.run(*number, plan.samples, [&] {
      auto batch = feed.take();
      feed.draw(shares);
      return batch;
    });
    note(result.earlier);
    if (!result.applied) {
      ++learnt.repeated;
      feed.rewind(plan.before);
      feed.draw(shares);
      continue;
    }
    const auto& mine = result.figures[static_cast<std::size_t>(group.rank())];
    learnt.late |= result.unread;
    if (!result.unread) note(EarlierStep{*number, mine, result.skipped});
    if (after_step) after_step(*number);
    ++*number;
  }
  note(step.read_late());
  learnt.loss_scale = step.stages().loss_scale();
  for (const auto& parameter : model.parameters()) {
    learnt.parameters.push_back(parameter.detach().to(torch::kCPU));
  }
  for (const auto& buffer : task::tensors_of(task::ModelState(model).buffers)) {
    learnt.buffers.push_back(buffer.to(torch::kCPU));
  }
  return learnt;
}

Learnt alone(const Asked& asked, const torch::Device& device,
             const std::function<void(int step)>& after_step = {}) {
  Learnt learnt;
  bimetal::testing::run_ranks(
      1, [&](int, comm::Group group) { learnt = learn(asked, device, group, after_step); });
  return learnt;
}

/// `norms`: of the gradients, which steps without a limit need not know.
void expect_alike(const Learnt& one, const Learnt& other, bool norms = false) {
  ASSERT_EQ(one.parameters.size(), other.parameters.size());
  for (std::size_t i = 0; i < one.parameters.size(); ++i) {
    EXPECT_LE((one.parameters[i] - other.parameters[i]).abs().max().item<double>(), 1e-12) << i;
  }
  ASSERT_EQ(one.figures.size(), other.figures.size());
  for (std::size_t i = 0; i < one.figures.size(); ++i) {
    EXPECT_NEAR(one.figures[i].loss_sum, other.figures[i].loss_sum, 1e-11) << "step " << i + 1;
    if (!norms) continue;
    if (!std::isfinite(other.figures[i].gradient_norm)) {
      EXPECT_FALSE(std::isfinite(one.figures[i].gradient_norm)) << "step " << i + 1;
      continue;
    }
    EXPECT_NEAR(one.figures[i].gradient_norm, other.figures[i].gradient_norm, 1e-11);
  }
}

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
  // Of each step the numbers are on their way when the next one begins.
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

precision::LossScalerOptions scaler() {
  return {.interval = 3};
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

TEST(Waits, OneForEachOfTwoRanks) {
  for (const double norm : {0.0, 0.1}) {
    const auto device = SimulatedDevice::install();
    const Asked asked{.step = {.update = {.limits = {.norm = norm}}}};
    std::vector<Learnt> learnt(2);
    SimulatedDevice::take_waits();
    bimetal::testing::run_ranks(2, [&](int, comm::Group group) {
      learnt[static_cast<std::size_t>(group.rank())] = learn(asked, device, group);
    });
    const auto all = SimulatedDevice::take_waits();
    const auto whole = alone(asked, torch::kCPU);
    for (auto& rank : learnt) {
      EXPECT_EQ(rank.figures.size(), 4);
      rank.figures.clear();
      rank.figures = whole.figures;  // a rank's own loss is of half of the samples
      expect_alike(rank, whole);
    }
    // Four steps of each, and what making models and reading them back waits for.
    const auto numbers = std::ranges::count(all, std::string("aten::_local_scalar_dense"));
    EXPECT_LE(numbers, 2 * 4);
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

}  // namespace
}  // namespace bimetal::train

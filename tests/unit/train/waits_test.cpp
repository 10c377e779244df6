// How often the host waits for a device in a step, counted on a simulated one:
// docs/accelerators.md.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/api/include/torch/types.h>
#include <torch/csrc/api/include/torch/utils.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "bimetal/base/error.h"
#include "bimetal/data/prefetch.h"
#include "bimetal/optim/optimizers.h"
#include "bimetal/task/catalog/image_classification.h"
#include "bimetal/train/step.h"
#include "support/errors.h"
#include "support/simulated_device.h"
#include "support/thread_ranks.h"

namespace bimetal::train {
namespace {

using bimetal::testing::SimulatedDevice;
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
  StepOptions step = {};
  std::function<void(std::vector<torch::Tensor>&)> spoil = {};  ///< the parameters, before steps
};

/// What a rank has after some steps, with batches from the job's own feed.
struct Learnt {
  std::vector<torch::Tensor> parameters;
  std::vector<progress::RankFigures> figures;  ///< the rank's, of each step
};

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
  if (asked.spoil) asked.spoil(parameters);
  const auto optimizer = optim::make_optimizer(config, parameters);
  auto options = asked.step;
  options.device = device;
  options.parallel.timeout = std::chrono::seconds(60);
  TrainingStep step(task, model, *optimizer, group, options);
  data::BatchFeed feed(task.training(), data::make_sampler(*task.training(), 1), group.rank(),
                       kSamples, /*epochs=*/2, device);
  const std::vector<std::int64_t> shares(static_cast<std::size_t>(group.size()),
                                         kSamples / group.size());
  Learnt learnt;
  feed.draw(shares);
  for (int number = 1; feed.next(); ++number) {
    const auto plan = feed.next()->samples;
    const auto result = step.run(number, plan, [&] {
      auto batch = feed.take();
      feed.draw(shares);
      return batch;
    });
    learnt.figures.push_back(result.figures[static_cast<std::size_t>(group.rank())]);
    if (after_step) after_step(number);
  }
  for (const auto& parameter : model.parameters()) {
    learnt.parameters.push_back(parameter.detach().to(torch::kCPU));
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
    EXPECT_NEAR(one.figures[i].gradient_norm, other.figures[i].gradient_norm, 1e-11);
  }
}

/// Learns what a CPU learns, and waits once in each step, but for the first, in which the
/// optimizer's state is made and kernels may be chosen.
void expect_one_wait(const Asked& asked) {
  const auto device = SimulatedDevice::install();
  std::vector<std::vector<std::string>> waits;
  const auto learnt =
      alone(asked, device, [&](int) { waits.push_back(SimulatedDevice::take_waits()); });
  ASSERT_EQ(waits.size(), 4);
  for (std::size_t i = 1; i < waits.size(); ++i) EXPECT_THAT(waits[i], SizeIs(1)) << i + 1;
  for (const auto& figures : learnt.figures) EXPECT_GT(figures.compute_seconds, 0);
  expect_alike(learnt, alone(asked, torch::kCPU), asked.step.update.limits.norm > 0);
}

TEST(Waits, OneInAPlainStep) {
  for (const std::string optimizer : {"sgd", "adam", "adamw", "lars", "lamb"}) {
    SCOPED_TRACE(optimizer);
    expect_one_wait({.optimizer = optimizer});
  }
}

TEST(Waits, OneHoweverManyPieces) {
  expect_one_wait({.step = {.micro_batch = 2}});
}

TEST(Waits, OneWithTheNormOfTheGradients) {
  expect_one_wait({.step = {.micro_batch = 4, .update = {.limits = {.norm = 0.1}}}});
  expect_one_wait({.step = {.update = {.limits = {.norm = 0.1, .value = 0.01}}}});
}

TEST(Waits, OneWithALossScale) {
  expect_one_wait({.step = {.update = {.scaler = precision::LossScalerOptions()}}});
  expect_one_wait({.step = {.micro_batch = 4,
                            .update = {.limits = {.norm = 0.1, .value = 0.01},
                                       .scaler = precision::LossScalerOptions()}}});
}

TEST(Waits, OneWithRunningStatistics) {
  expect_one_wait({.model = "resnet18", .optimizer = "sgd", .norm_group = 4});
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

TEST(Waits, ALossThatIsNotFiniteNamesItsStep) {
  const auto device = SimulatedDevice::install();
  const Asked asked{.step = {.update = {.limits = {.norm = 0.1}}},
                    .spoil = [](std::vector<torch::Tensor>& parameters) {
                      const torch::NoGradGuard no_grad;
                      parameters.front().fill_(std::numeric_limits<double>::quiet_NaN());
                    }};
  expect_error(ErrorCode::NotFinite, {"step 1: the loss of rank 0 is not finite"},
               [&] { alone(asked, device); });
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

}  // namespace
}  // namespace bimetal::train

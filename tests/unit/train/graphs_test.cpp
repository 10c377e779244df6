// Steps that are launched as graphs of a device (train.graphs), on a simulated one that keeps what
// is recorded, and on which nothing can be read until it is repeated: docs/accelerators.md.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/api/include/torch/types.h>
#include <torch/csrc/api/include/torch/utils.h>

#include <array>
#include <map>
#include <string>
#include <vector>

#include "bimetal/base/error.h"
#include "bimetal/task/dropout.h"
#include "bimetal/train/share/recorded_passes.h"
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

Asked in_graphs(Asked asked) {
  asked.step.graphs = true;
  return asked;
}

/// A rank alone learns what a CPU learns. The first step is computed as usual, the second recorded.
Learnt expect_the_same(const Asked& asked) {
  const auto device = SimulatedDevice::install();
  const auto learnt = alone(in_graphs(asked), device);
  EXPECT_TRUE(learnt.late);
  const auto expected = alone(asked, torch::kCPU);
  expect_alike(learnt, expected, asked.step.update.limits.norm > 0);
  EXPECT_EQ(learnt.skipped, expected.skipped);
  EXPECT_EQ(learnt.loss_scale, expected.loss_scale);
  EXPECT_EQ(learnt.buffers.size(), expected.buffers.size());
  for (std::size_t i = 0; i < expected.buffers.size(); ++i) {
    EXPECT_TRUE(learnt.buffers[i].allclose(expected.buffers[i], 1e-12, 1e-12)) << i;
  }
  return learnt;
}

TEST(Graphs, LearnWhatACpuLearns) {
  for (const std::string optimizer : {"sgd", "adamw", "lamb"}) {
    SCOPED_TRACE(optimizer);
    expect_the_same({.optimizer = optimizer, .epochs = 3});
  }
  expect_the_same({.epochs = 3, .step = {.micro_batch = 2}});
  // Pieces of two sizes: 3, 2, 3.
  expect_the_same({.epochs = 3, .step = {.micro_batch = 3}});
}

TEST(Graphs, WithClippingAndALossScale) {
  expect_the_same({.epochs = 4, .step = {.micro_batch = 4, .update = {.limits = {.norm = 0.1}}}});
  expect_the_same(
      {.epochs = 4,
       .step = {.micro_batch = 4,
                .update = {.limits = {.norm = 0.1, .value = 0.01}, .scaler = scaler()}}});
}

// The scale changes from step to step, and is in no graph.
TEST(Graphs, SkipWhatOverflows) {
  Asked asked;
  asked.epochs = 6;
  asked.overflows = {1, 4, 5, 12};
  asked.step.update = {.limits = {.norm = 0.1}, .scaler = scaler()};
  const auto learnt = expect_the_same(asked);
  EXPECT_THAT(learnt.skipped, ElementsAre(1, 4, 5, 12));
}

TEST(Graphs, WithRunningStatistics) {
  expect_the_same({.model = "resnet18", .optimizer = "sgd", .norm_group = 4, .epochs = 3});
}

/// Launches of each step.
std::vector<std::int64_t> launches(const Asked& asked) {
  const auto device = SimulatedDevice::install();
  SimulatedDevice::take_launches();
  std::vector<std::int64_t> all;
  alone(asked, device, [&](int) { all.push_back(SimulatedDevice::take_launches()); });
  return all;
}

// Two for each piece, and what is between them; as many for a network of 62 parameters as for one
// of four.
TEST(Graphs, LaunchNoKernelOfForwardAndBackward) {
  const auto of = [&](const std::string& model, bool graphs) {
    Asked asked;
    asked.model = model;
    asked.optimizer = "sgd";
    asked.epochs = 3;
    asked.step.graphs = graphs;
    return launches(asked);
  };
  const auto small = of("mlp", true), large = of("resnet18", true);
  const auto small_one_by_one = of("mlp", false), large_one_by_one = of("resnet18", false);
  ASSERT_EQ(small.size(), 6);
  for (std::size_t step = 3; step < small.size(); ++step) {
    EXPECT_EQ(small[step], large[step]) << step + 1;
    EXPECT_LT(small[step], small_one_by_one[step]) << step + 1;
    EXPECT_LT(5 * large[step], large_one_by_one[step]) << step + 1;
  }
}

TEST(Graphs, NoWaitInARepeatedStep) {
  const auto device = SimulatedDevice::install();
  std::vector<std::vector<std::string>> waits;
  SimulatedDevice::take_waits();
  alone(in_graphs({.epochs = 3, .step = {.micro_batch = 4}}), device,
        [&](int) { waits.push_back(SimulatedDevice::take_waits()); });
  ASSERT_EQ(waits.size(), 6);
  for (std::size_t step = 2; step < waits.size(); ++step) EXPECT_THAT(waits[step], IsEmpty());
}

// In the step that is to be recorded: it is repeated without graphs, and so are all later ones.
TEST(Graphs, GoWhereThereIsNoMemoryForThem) {
  Asked asked;
  asked.epochs = 3;
  asked.too_large = {2};
  const auto device = SimulatedDevice::install();
  SimulatedDevice::take_launches();
  std::vector<std::int64_t> all;
  const auto learnt = alone(in_graphs(asked), device,
                            [&](int) { all.push_back(SimulatedDevice::take_launches()); });
  EXPECT_EQ(learnt.repeated, 1);
  asked.too_large.clear();
  expect_alike(learnt, alone(asked, torch::kCPU));
  EXPECT_EQ(all.back(), launches(asked).back());
}

/// Two ranks whose shares change learn what one learns.
void expect_the_same_of_two(Asked asked, const std::array<torch::Device, 2>& devices) {
  asked.epochs = 4;
  // Each shape once as usual, once recorded and then repeated; the first one later, too.
  asked.shares = [more = asked.norm_group > 0 ? kSamples : 6](int step) {
    const std::int64_t first = step >= 4 && step < 7 ? more : 4;
    return std::vector<std::int64_t>{first, kSamples - first};
  };
  std::vector<Learnt> learnt(2);
  bimetal::testing::run_ranks(2, [&](int rank, comm::Group group) {
    const auto at = static_cast<std::size_t>(rank);
    learnt[at] = learn(in_graphs(asked), devices[at], group);
  });
  asked.shares = {};
  const auto whole = alone(asked, torch::kCPU);
  for (auto& rank : learnt) {
    ASSERT_EQ(rank.figures.size(), whole.figures.size());
    for (std::size_t i = 0; i < whole.figures.size(); ++i) {
      rank.figures[i].loss_sum = whole.figures[i].loss_sum;  // its own is of its samples
    }
    expect_alike(rank, whole, asked.step.update.limits.norm > 0);
    EXPECT_EQ(rank.skipped, whole.skipped);
  }
}

TEST(Graphs, OfTwoRanksWhoseSharesChange) {
  const auto device = SimulatedDevice::install();
  const UpdateOptions update{.limits = {.norm = 0.1}, .scaler = scaler()};
  expect_the_same_of_two({}, {device, device});
  expect_the_same_of_two({.step = {.micro_batch = 2, .update = update}}, {device, device});
  expect_the_same_of_two({.model = "resnet18", .optimizer = "sgd", .norm_group = 4},
                         {device, device});
}

// The CPU starts its kernels at once, and has no graphs.
TEST(Graphs, OfADeviceBesideACpu) {
  const auto device = SimulatedDevice::install();
  expect_the_same_of_two({}, {device, torch::Device(torch::kCPU)});
  expect_the_same_of_two({.step = {.micro_batch = 2, .update = {.limits = {.norm = 0.1}}}},
                         {torch::Device(torch::kCPU), device});
}

// What is recorded, and for how long.

/// y = w · x, with a parameter that nothing uses.
struct Line {
  Line() {
    const auto device = SimulatedDevice::install();
    const auto options = torch::dtype(torch::kFloat64).device(device);
    weight = torch::tensor({0.5, -2.0, 3.0}, torch::kFloat64).to(device).requires_grad_();
    spare = torch::ones({2}, options).requires_grad_();
    const auto forward = [w = weight](const task::Values& inputs) {
      return task::Values{at::matmul(inputs.front(), w)};
    };
    model.units.push_back(
        {.name = "line", .parameters = {{"weight", weight}, {"spare", spare}}, .forward = forward});
  }

  /// The loss of so many samples, whose gradient is added.
  double step(RecordedPasses& passes, std::int64_t samples, double factor = 1) {
    const auto x =
        (torch::arange(samples * 3, torch::kFloat64).reshape({samples, 3}) * factor).to(device());
    const auto loss = passes.loss({x}, [&](const task::Values& piece) {
      return task::run_units(model, piece).front().square().sum();
    });
    loss.backward();
    return loss.item<double>();
  }
  torch::Device device() const { return weight.device(); }
  torch::Tensor take_gradient() {
    auto gradient = weight.grad().to(torch::kCPU).clone();
    weight.mutable_grad() = torch::Tensor();
    return gradient;
  }

  torch::Tensor weight, spare;
  task::Model model;
};

TEST(Graphs, KeepTheShapesThatWereUsedLast) {
  Line line;
  RecordedPasses passes(line.model, line.device());
  const auto expect_step = [&](std::int64_t samples, double factor) {
    const double loss = line.step(passes, samples, factor);
    const auto gradient = line.take_gradient();
    Line other;
    RecordedPasses fresh(other.model, other.device());
    EXPECT_EQ(loss, other.step(fresh, samples, factor));
    EXPECT_TRUE(gradient.equal(other.take_gradient()));
  };
  for (int round = 0; round < 3; ++round) {
    for (std::int64_t samples = 1; samples <= 6; ++samples) {
      expect_step(samples, round + samples);
      EXPECT_LE(passes.kept(), RecordedPasses::kMost);
    }
  }
  EXPECT_EQ(passes.kept(), RecordedPasses::kMost);
  SimulatedDevice::take_launches();
  expect_step(6, 0.5);
  expect_step(6, 0.25);
}

TEST(Graphs, AddToGradientsOfOtherPieces) {
  Line line, one_by_one;
  RecordedPasses passes(line.model, line.device());
  for (int step = 0; step < 4; ++step) {
    // From the third step on the first piece is repeated; the last ones are new.
    for (const std::int64_t samples : {std::int64_t{2}, std::int64_t{10 + step}, std::int64_t{2}}) {
      line.step(passes, samples, step + 1);
      RecordedPasses fresh(one_by_one.model, one_by_one.device());
      one_by_one.step(fresh, samples, step + 1);
    }
    EXPECT_TRUE(line.take_gradient().equal(one_by_one.take_gradient())) << step;
    EXPECT_FALSE(line.spare.grad().defined()) << "nothing uses it";
  }
}

TEST(Graphs, AreRecordedAnewWhereAParameterMoves) {
  Line line;
  RecordedPasses passes(line.model, line.device());
  for (int i = 0; i < 3; ++i) line.step(passes, 2);
  EXPECT_EQ(passes.kept(), 1);
  const auto moved = torch::tensor({1.0, 1.0, 1.0}, torch::kFloat64).to(line.device());
  line.weight.set_data(moved);
  EXPECT_EQ(line.step(passes, 2), 9 + 144);
  EXPECT_EQ(line.step(passes, 2), 9 + 144);
}

TEST(Graphs, AreRefusedForWhatTheyCannotHave) {
  Line line;
  const auto x = torch::ones({2, 3}, line.weight.options().requires_grad(false));
  const auto twice = [&](const RecordedPasses::LossOf& loss_of) {
    RecordedPasses passes(line.model, line.device());
    for (int i = 0; i < 2; ++i) passes.loss({x}, loss_of).backward();
  };
  expect_error(ErrorCode::Unsupported, {"train.graphs", "reading a number", "train.graphs = false"},
               [&] {
                 twice([&](const task::Values& piece) {
                   const auto y = at::matmul(piece.front(), line.weight).sum();
                   return y * y.item<double>();
                 });
               });
  expect_error(ErrorCode::Unsupported, {"train.graphs", "dropout"}, [&] {
    const task::DrawScope scope(task::Draws::of_nobody(2));
    twice([&](const task::Values& piece) {
      const auto y = (piece.front() * line.weight).unsqueeze(1);
      return task::dropout_by_sample(y, 0.5, 0).sum();
    });
  });
  expect_error(ErrorCode::Unsupported, {"cpu"}, [&] { RecordedPasses(line.model, torch::kCPU); });
}

// Whole jobs.

struct GraphsRun {
  std::vector<double> losses, evaluated;
  std::map<std::string, torch::Tensor> end;
  std::vector<std::string> checkpoints;
};

GraphsRun run_with_graphs(const std::string& worker, const SyntheticImages& images,
                          const TemporaryFolder& folder, bool graphs,
                          const std::optional<std::filesystem::path>& resume = {}) {
  auto job = small_job(images);
  job.model.name = "cnn";
  job.train.optimizer = "adamw";
  job.train.learning_rate = 0.01;
  job.train.clip_norm = 0.5;
  job.train.graphs = graphs;
  job.train.evaluate = true;
  job.checkpoint.dir = folder.path().string();
  job.checkpoint.every_steps = 4;
  job.checkpoint.keep = 100;
  const auto run = run_job(job, 1, {.workers = {worker}, .resume = resume});
  GraphsRun result{.losses = {},
                   .evaluated = run.recorders[0].losses,
                   .end = parameters_of(run.recorders[0].checkpoints.back()),
                   .checkpoints = run.recorders[0].checkpoints};
  for (const auto& step : run.recorders[0].steps) result.losses.push_back(step.loss);
  return result;
}

// 200 samples in steps of 32: each epoch's last one is smaller. Evaluations and checkpoints come in
// between, and one of these is gone on with.
TEST(Graphs, OfAJobWithEvaluationsAndCheckpoints) {
  SimulatedDevice::install();
  const SyntheticImages images(200, 40);
  const TemporaryFolder there_folder, here_folder, resumed_folder;
  const auto here = run_with_graphs("cpu:threads=1", images, here_folder, true);
  const auto there = run_with_graphs("auto", images, there_folder, true);
  const auto resumed =
      run_with_graphs("auto", images, resumed_folder, true, there.checkpoints.at(1));
  ASSERT_EQ(there.losses.size(), here.losses.size());
  for (std::size_t i = 0; i < here.losses.size(); ++i) {
    EXPECT_NEAR(there.losses[i], here.losses[i], 1e-12) << i;
  }
  ASSERT_EQ(there.evaluated.size(), here.evaluated.size());
  for (std::size_t i = 0; i < here.evaluated.size(); ++i) {
    EXPECT_NEAR(there.evaluated[i], here.evaluated[i], 1e-12) << i;
  }
  for (const auto& [name, tensor] : here.end) {
    EXPECT_TRUE(there.end.at(name).allclose(tensor, 1e-12, 1e-12)) << name;
    EXPECT_TRUE(resumed.end.at(name).allclose(tensor, 1e-12, 1e-12)) << name;
  }
}

}  // namespace
}  // namespace bimetal::train

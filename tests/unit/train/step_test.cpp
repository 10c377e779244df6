#include "bimetal/train/step.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/api/include/torch/optim.h>
#include <torch/csrc/api/include/torch/types.h>

#include <memory>
#include <new>
#include <optional>
#include <utility>

#include "bimetal/base/error.h"
#include "bimetal/parallel/shard/sharded_model.h"
#include "bimetal/task/catalog/job_task.h"
#include "bimetal/train/rank_journal.h"
#include "support/errors.h"
#include "support/thread_ranks.h"

namespace bimetal::train {
namespace {

using ::testing::HasSubstr;

task::ImageClassification small_images() {
  data::ImageDataset set;
  set.images = torch::zeros({1, 1, 4, 4}, torch::kUInt8);
  set.labels = torch::zeros({1}, torch::kInt64);
  return {"linear", 0, {set, set}, "float32"};
}

/// One rank's model, optimizer and step.
struct Worker {
  explicit Worker(comm::Group group, std::int64_t micro_batch = 0)
      : rank(group.rank()),
        task(small_images()),
        model(task.make_model()),
        sgd(model.parameters(), torch::optim::SGDOptions(0.1)),
        step(task, model, sgd, group, options(micro_batch)) {}

  static StepOptions options(std::int64_t micro_batch) {
    StepOptions options;
    options.micro_batch = micro_batch;
    options.parallel.timeout = std::chrono::seconds(60);
    return options;
  }

  std::vector<torch::Tensor> parameters() const {
    std::vector<torch::Tensor> copies;
    for (const auto& parameter : model.parameters()) copies.push_back(parameter.detach().clone());
    return copies;
  }

  int rank;
  task::ImageClassification task;
  task::Model model;
  torch::optim::SGD sgd;
  TrainingStep step;
};

data::EpochSampler::Step plan_of(std::vector<std::int64_t> counts) {
  data::EpochSampler::Step plan;
  for (const auto count : counts) plan.total += count;
  plan.indices.resize(static_cast<std::size_t>(plan.total));
  plan.weights = plan.counts = std::move(counts);
  return plan;
}

task::Values ones(std::int64_t samples) {
  return {torch::ones({samples, 1, 4, 4}), torch::zeros({samples}, torch::kInt64)};
}

/// More than any machine has: libtorch's allocator refuses it.
task::Values enormous() {
  return {torch::empty({std::int64_t{1} << 50}), {}};
}

bool equal(const std::vector<torch::Tensor>& a, const std::vector<torch::Tensor>& b) {
  return std::ranges::equal(a, b, [](const auto& x, const auto& y) { return x.equal(y); });
}

TEST(TrainingStep, RankThatRunsOutOfMemoryMakesAllDiscardTheStep) {
  bimetal::testing::run_ranks(2, [](int, comm::Group group) {
    Worker worker(group);
    const auto before = worker.parameters();
    const auto failing = worker.step.run(1, plan_of({4, 4}),
                                         [&] { return worker.rank == 1 ? enormous() : ones(4); });
    EXPECT_FALSE(failing.applied);
    EXPECT_EQ(failing.figures[0].fit, progress::Fit::fits);
    EXPECT_EQ(failing.figures[1].fit, progress::Fit::too_large)
        << "the batch itself cannot be held";
    EXPECT_EQ(failing.figures[1].batch, 4);
    EXPECT_TRUE(equal(worker.parameters(), before));

    // The same step again, as one device would have done it.
    EXPECT_TRUE(
        worker.step.run(1, plan_of({6, 2}), [&] { return ones(worker.rank ? 2 : 6); }).applied);
    EXPECT_FALSE(equal(worker.parameters(), before));
  });
}

/// Computes as long as it is given few samples at once, and then runs out of memory as the
/// allocator would.
task::Model narrow(std::int64_t most) {
  const auto weight = torch::ones({16, 10}, torch::requires_grad());
  return {{{.name = "narrow",
            .parameters = {{"weight", weight}},
            .forward = [=](const task::Values& inputs) -> task::Values {
              if (inputs[0].size(0) > most) torch::empty({std::int64_t{1} << 50});
              return {inputs[0].flatten(1).matmul(weight)};
            }}}};
}

/// Writes down how many samples it is given at once.
task::Model counting(std::vector<std::int64_t>& sizes) {
  const auto weight = torch::ones({16, 10}, torch::requires_grad());
  return {{{.name = "counting",
            .parameters = {{"weight", weight}},
            .forward = [&sizes, weight](const task::Values& inputs) -> task::Values {
              sizes.push_back(inputs[0].size(0));
              return {inputs[0].flatten(1).matmul(weight)};
            }}}};
}

TEST(TrainingStep, GivesUpOnAShareThatNoPieceOfFits) {
  bimetal::testing::run_ranks(1, [](int, comm::Group group) {
    const auto task = small_images();
    const auto model = narrow(2);
    torch::optim::SGD sgd(model.parameters(), torch::optim::SGDOptions(0.1));
    TrainingStep step(task, model, sgd, group, Worker::options(16));
    const auto run = [&] { return step.run(1, plan_of({16}), [] { return ones(16); }); };
    EXPECT_EQ(run().figures[0].fit, progress::Fit::try_smaller_pieces);
    EXPECT_EQ(run().figures[0].fit, progress::Fit::too_large);
  });
}

TEST(TrainingStep, NotANumberOnOneRankStopsAllBeforeTheUpdate) {
  bimetal::testing::run_ranks(3, [](int, comm::Group group) {
    Worker worker(group);
    const auto before = worker.parameters();
    const auto fetch = [&] {
      auto batch = ones(2);
      if (worker.rank == 2) batch[0].fill_(std::numeric_limits<float>::quiet_NaN());
      return batch;
    };
    EXPECT_EQ(expect_error(ErrorCode::NotFinite, {"step 41", "rank 2"},
                           [&] {
                             worker.step.run(41, plan_of({2, 2, 2}), fetch);
                           })
                  .rank(),
              2);
    EXPECT_TRUE(equal(worker.parameters(), before));
  });
}

// If ranks take part in each other's passes, one large pass beside two small ones would make both
// wait.
TEST(TrainingStep, PassesThatAreTogetherAreAsManyOnEachRank) {
  for (const int level : {1, 2, 3}) {
    bimetal::testing::run_ranks(3, [level](int rank, comm::Group group) {
      const auto task = small_images();
      std::vector<std::int64_t> sizes;
      const auto model = counting(sizes);
      const auto sharded = std::make_shared<parallel::shard::ShardedModel>(
          model, group,
          parallel::shard::ShardedModelOptions{
              .level = level, .weights = {1, 1, 1}, .timeout = std::chrono::seconds(60)});
      std::vector<torch::Tensor> pieces;
      for (const auto& piece : sharded->pieces()) pieces.push_back(piece.tensor);
      torch::optim::SGD sgd(pieces, torch::optim::SGDOptions(0.1));
      TrainingStep step(task, sharded->model(), sgd, sharded, Worker::options(12));
      const std::vector<std::int64_t> counts = {24, 8, 0};
      const auto share = counts[static_cast<std::size_t>(rank)];
      EXPECT_TRUE(step.run(1, plan_of(counts), [&] { return ones(share); }).applied);
      const std::vector<std::vector<std::int64_t>> expected = {
          {12, 12},
          level == 1 ? std::vector<std::int64_t>{8} : std::vector<std::int64_t>{4, 4},
          {}};
      EXPECT_EQ(sizes, expected[static_cast<std::size_t>(rank)]) << "level " << level;
    });
  }
}

// Nothing would move: what ranks keep of parameters are their pieces.
TEST(TrainingStep, AnOptimizerOfTheModelsParametersTrainsNoShards) {
  for (const int level : {1, 2, 3}) {
    bimetal::testing::run_ranks(2, [level](int, comm::Group group) {
      const auto task = small_images();
      const auto model = task.make_model();
      const auto sharded = std::make_shared<parallel::shard::ShardedModel>(
          model, group,
          parallel::shard::ShardedModelOptions{
              .level = level, .weights = {1, 1}, .timeout = std::chrono::seconds(60)});
      torch::optim::SGD sgd(model.parameters(), torch::optim::SGDOptions(0.1));
      TrainingStep step(task, sharded->model(), sgd, sharded, Worker::options(0));
      expect_error(ErrorCode::InvalidArgument, {"make it of ShardedModel::pieces()"}, [&] {
        step.run(1, plan_of({2, 2}), [] { return ones(2); });
      });
    });
  }
  bimetal::testing::run_ranks(2, [](int, comm::Group group) {
    Worker worker(group);
    torch::optim::SGD other(small_images().make_model().parameters(), 0.1);
    TrainingStep step(worker.task, worker.model, other, group, Worker::options(0));
    expect_error(ErrorCode::InvalidArgument, {"make it of the trained parameters"}, [&] {
      step.run(1, plan_of({2, 2}), [] { return ones(2); });
    });
  });
}

// Ranks that compute one replica together.
TEST(RankJournal, WaitingInSumsIsNoWork) {
  const balance::Balancer balancer({.global_batch = 8}, std::vector<balance::Device>(1));
  RunJournal run({.epochs = 1, .steps = 1, .global_batch = 8});
  RankJournal journal(balancer, Lanes(1, 0), balance::Policy::Equal, run);
  journal.start_clock();
  const progress::RankFigures figures{.batch = 8, .compute_seconds = 3, .sum_seconds = 1};
  data::BatchFeed::Plan plan;
  plan.samples = plan_of({8});
  const auto progress = journal.add(1, plan, {.figures = {&figures, 1}, .applied = true});
  EXPECT_EQ(progress.workers.at(0).compute_s, 2);
  EXPECT_EQ(progress.rank_samples_per_s.at(0), 4);
}

/// A rank's shards, updated in backward.
struct ShardedWorker {
  explicit ShardedWorker(comm::Group group)
      : task(small_images()),
        sharded(std::make_shared<parallel::shard::ShardedModel>(
            task.make_model(), std::move(group),
            parallel::shard::ShardedModelOptions{
                .level = 3, .weights = {1, 1}, .timeout = std::chrono::seconds(60)})),
        sgd(pieces(), torch::optim::SGDOptions(0.1)) {
    sharded->update_in_backward([this] { sgd.step(); });
  }

  std::vector<torch::Tensor> pieces() const {
    std::vector<torch::Tensor> tensors;
    for (const auto& piece : sharded->pieces()) tensors.push_back(piece.tensor);
    return tensors;
  }

  std::unique_ptr<TrainingStep> make_step(const UpdateOptions& update = {}) {
    auto options = Worker::options(0);
    options.update = update;
    return std::make_unique<TrainingStep>(task, sharded->model(), sgd, sharded, options);
  }

  task::ImageClassification task;
  std::shared_ptr<parallel::shard::ShardedModel> sharded;
  torch::optim::SGD sgd;
};

TEST(TrainingStep, UpdatesInBackwardGoWithNeitherAScaleNorLimits) {
  bimetal::testing::run_ranks(2, [](int, comm::Group group) {
    ShardedWorker worker(group);
    const auto code_of = [&](const UpdateOptions& update) -> std::optional<ErrorCode> {
      try {
        worker.make_step(update);
      } catch (const Error& error) {
        return error.code();
      }
      return std::nullopt;
    };
    EXPECT_EQ(code_of({.scaler = precision::LossScalerOptions{}}), ErrorCode::Unsupported);
    EXPECT_EQ(code_of({.limits = {.norm = 1}}), ErrorCode::Unsupported);
    EXPECT_EQ(code_of({.limits = {.value = 1}}), ErrorCode::Unsupported);
    EXPECT_FALSE(code_of({}));
  });
}

// The trainer takes an Error of memory for one that all ranks throw, and tells nobody.
TEST(TrainingStep, LackOfMemoryWhereNoStepIsRepeatedIsOfThisRank) {
  bimetal::testing::run_ranks(2, [](int, comm::Group group) {
    ShardedWorker worker(group);
    const auto step = worker.make_step();
    const auto fetch = []() -> task::Values {
      throw Error(ErrorCode::OutOfMemory, "no memory for 12 bytes");
    };
    try {
      step->run(1, plan_of({2, 2}), fetch);
      ADD_FAILURE() << "nothing was thrown";
    } catch (const std::bad_alloc& error) {
      EXPECT_THAT(error.what(), HasSubstr("12 bytes"));
    }
  });
}

}  // namespace
}  // namespace bimetal::train

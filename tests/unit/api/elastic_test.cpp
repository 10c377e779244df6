// Loops of a program's own whose workers are killed, leave and come: the result is that of one
// undisturbed device, or an error.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/api/include/torch/nn.h>
#include <torch/csrc/api/include/torch/optim.h>

#include <chrono>
#include <csignal>
#include <fstream>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "bimetal/bimetal.h"
#include "bimetal/checkpoint/safetensors.h"
#include "support/temporary_folder.h"
#include "unit/api/forked_ranks.h"
#include "unit/train/training_job.h"

namespace bimetal::elastic_test {
namespace {

using ::testing::HasSubstr;
using Trainer = DataParallel;

std::shared_ptr<TensorDataset> samples() {
  const auto x = torch::arange(22 * 3, torch::kFloat64).view({22, 3}).mul(0.7).sin();
  return std::make_shared<TensorDataset>(Values{x, torch::arange(22).remainder(5)});
}

torch::nn::Sequential make_net() {
  torch::manual_seed(5);
  torch::nn::Sequential net(torch::nn::Linear(3, 7), torch::nn::Tanh(), torch::nn::Linear(7, 5));
  net->to(torch::kFloat64);
  return net;
}

/// The changes of workers, as one of them was told.
struct Told : Observer {
  std::size_t lost = 0, left = 0, came = 0;
  void on_members(const progress::MembersChange& change) override {
    lost += change.lost.size();
    left += change.left.size();
    came += change.came.size();
  }
};

struct Plan {
  std::int64_t epochs = 3;  ///< of four steps
  /// Called in the loss of a step, and behind the step.
  std::function<void(const Job&, std::int64_t step)> within = [](const auto&, auto) {};
  std::function<void(const Job&, std::int64_t step)> behind = [](const auto&, auto) {};
};

/// 0: it has come to the end; 1: what it was told is not `expected`; 3: it has left.
int run(const Plan& plan, const std::filesystem::path& output, const Told& expected = {}) {
  const auto job = init(0, nullptr, {.worker = "cpu:threads=1"});
  const auto told = std::make_shared<Told>();
  job.watch(told);
  auto net = make_net();
  torch::optim::Adam adam(net->parameters(), 0.02);
  const bool stayed = elastic(job, net, adam, [&](const auto& at) {
    Trainer trainer(net, job, {.limits = {.norm = 0.3}});
    for (auto& batch :
         job.balanced(samples(), {.global_batch = 6, .epochs = plan.epochs, .from = at})) {
      trainer.step(adam, [&](const Batch& piece) {
        plan.within(job, batch.step);
        return torch::cross_entropy_loss(net->forward(piece.x), piece.y);
      });
      plan.behind(job, batch.step);
    }
  });
  if (!stayed) return 3;
  if (job.rank() == 0) save(net, output);
  return told->lost == expected.lost && told->came == expected.came && told->left == expected.left
             ? 0
             : 1;
}

double difference(const std::filesystem::path& one, const std::filesystem::path& other) {
  return train::test::relative_difference(checkpoint::read_safetensors(one),
                                          checkpoint::read_safetensors(other));
}

void run_alone(const Plan& plan, const std::filesystem::path& output) {
  EXPECT_EQ(test::run_forked_ranks(1, [&](int) { return run(plan, output); }), std::vector<int>{0});
}

TEST(Elastic, AKilledWorkerChangesNothing) {
  const test::TemporaryFolder folder;
  run_alone({}, folder / "alone");
  for (const int killed : {0, 2}) {
    for (const bool within : {true, false}) {
      const auto file = folder / std::to_string(2 * killed + int(within));
      Told once;
      once.lost = 1;
      const auto statuses = test::run_forked_ranks(3, [&](int rank) {
        Plan plan;
        const auto dies = [&, rank](const Job&, std::int64_t step) {
          if (rank == killed && step == 6) raise(SIGKILL);
        };
        (within ? plan.within : plan.behind) = dies;
        return run(plan, file, once);
      });
      std::vector<int> expected(3, 0);
      expected[static_cast<std::size_t>(killed)] = -1;
      EXPECT_EQ(statuses, expected) << killed << within;
      EXPECT_LT(difference(file, folder / "alone"), 1e-12) << killed << within;
    }
  }
}

TEST(Elastic, OneComesAndAnotherOneLeaves) {
  constexpr int kEpochs = 100;
  const test::TemporaryFolder folder;
  run_alone({.epochs = kEpochs}, folder / "alone");
  const auto door = folder / "door";
  const auto pause = [] { std::this_thread::sleep_for(std::chrono::milliseconds(20)); };
  test::ForkedChild newcomer([&] {
    while (!std::filesystem::exists(door)) pause();
    std::string text;
    std::ifstream(door) >> text;
    setenv("BIMETAL_DOOR", text.c_str(), 1);
    Told one;
    one.left = 1;
    return run({.epochs = kEpochs}, folder / "two", one);
  });
  const auto statuses = test::run_forked_ranks(2, [&](int rank) {
    bool asked = false;
    Told both;
    both.came = both.left = 1;
    return run({.epochs = kEpochs,
                .behind =
                    [&, rank](const Job& job, std::int64_t step) {
                      if (rank == 0 && step == 2) {
                        std::ofstream(folder / "part") << job.doors().at(0);
                        std::filesystem::rename(folder / "part", door);
                      }
                      if (job.world_size() == 3 && rank == 1) job.leave();
                      asked |= job.world_size() == 3;
                      if (!asked) pause();
                    }},
               folder / "two", both);
  });
  EXPECT_EQ(statuses, (std::vector<int>{0, 3}));
  EXPECT_EQ(newcomer.wait(), 0);
  EXPECT_LT(difference(folder / "two", folder / "alone"), 1e-12);
}

/// In shards, of which each call of the loop begins with the last checkpoint.
TEST(Elastic, ShardsGoOnFromTheLastCheckpoint) {
  const test::TemporaryFolder folder;
  const auto train = [&](int rank, int killed, const std::string& name) {
    const auto job = init(0, nullptr, {.worker = "cpu:threads=1"});
    elastic(job, [&] {
      Trainer trainer(make_net(), job, {.zero = {.level = 3}});
      torch::optim::Adam adam(trainer.parameters(), 0.02);
      const auto from = trainer.resume(folder / (name + ".saved"), adam);
      for (auto& batch : job.balanced(samples(), {.global_batch = 6, .epochs = 3, .from = from})) {
        trainer.step(adam, [&](const Batch& piece) {
          if (rank == killed && batch.step == 6) raise(SIGKILL);
          return torch::cross_entropy_loss(trainer.forward(piece.x), piece.y);
        });
        if (batch.step % 2 == 0) trainer.save(folder / (name + ".saved"), adam);
      }
      trainer.save_model(folder / name);
    });
    return 0;
  };
  EXPECT_EQ(test::run_forked_ranks(1, [&](int rank) { return train(rank, -1, "alone"); }),
            std::vector<int>{0});
  EXPECT_EQ(test::run_forked_ranks(3, [&](int rank) { return train(rank, 1, "three"); }),
            (std::vector<int>{0, -1, 0}));
  EXPECT_LT(difference(folder / "three", folder / "alone"), 1e-12);
}

TEST(Elastic, AnErrorOfOnesOwnEndsAllWithItsText) {
  const test::TemporaryFolder folder;
  const auto statuses = test::run_forked_ranks(2, [&](int rank) {
    try {
      run({.behind =
               [rank](const Job&, std::int64_t step) {
                 if (rank == 1 && step == 3) throw std::runtime_error("the disk is full");
               }},
          folder / "never");
    } catch (const Error& error) {
      return error.what() == std::string("rank 1: the disk is full") ? 4 : 1;
    } catch (const std::runtime_error& error) {
      return error.what() == std::string("the disk is full") ? 5 : 1;
    }
    return 1;
  });
  EXPECT_EQ(statuses, (std::vector<int>{4, 5}));
}

std::string refusal(const std::function<void()>& action) {
  try {
    action();
  } catch (const Error& error) {
    return error.what();
  }
  return "nothing was refused";
}

TEST(Elastic, WhatCannotOutliveAWorkerIsRefused) {
  const auto loop = [](const DataParallelOptions& options, BalancedOptions balanced = {},
                       bool outside = false, bool other = false) {
    return refusal([&] {
      const auto job = init(0, nullptr, {.worker = "cpu:threads=1"});
      auto net = make_net();
      torch::optim::SGD sgd(net->parameters(), 0.1), another(net->parameters(), 0.1);
      std::optional<Trainer> before;
      if (outside) before.emplace(net, job);
      elastic(job, net, sgd, [&](const auto&) {
        std::optional<Trainer> here;
        if (!outside) here.emplace(net, job, options);
        for (auto& batch : job.balanced(samples(), balanced)) {
          (outside ? before : here)
              ->step(torch::cross_entropy_loss(net->forward(batch.x), batch.y),
                     other ? another : sgd);
        }
      });
    });
  };
  EXPECT_EQ(loop({}), "nothing was refused");
  EXPECT_THAT(loop({.zero = {.level = 2}}), HasSubstr("lost with the rank"));
  EXPECT_THAT(loop({}, {.weights = {1}}), HasSubstr("ranks come and go"));
  EXPECT_THAT(loop({}, {}, true), HasSubstr("in the function that bimetal::elastic calls"));
  EXPECT_THAT(loop({}, {}, false, true), HasSubstr("has to be the one that it was given"));
  setenv("BIMETAL_DOOR", "127.0.0.1:1", 1);
  EXPECT_THAT(refusal([] { init().balanced(samples(), {}); }), HasSubstr("call bimetal::elastic"));
  unsetenv("BIMETAL_DOOR");
  EXPECT_THAT(refusal([] { elastic(init(), [] {}, {.min_workers = 3, .max_workers = 2}); }),
              HasSubstr("min_workers is 3"));
  EXPECT_THAT(refusal([] { elastic(init(), [] {}, {.min_workers = 2}); }),
              HasSubstr("1 have started"));
}

}  // namespace
}  // namespace bimetal::elastic_test

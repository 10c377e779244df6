// The messages that other ranks of an own loop get about an exception on one of them, and about a
// token that is not theirs.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/api/include/torch/nn.h>
#include <torch/csrc/api/include/torch/optim.h>

#include <cstdlib>
#include <fstream>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "bimetal/bimetal.h"
#include "support/temporary_folder.h"
#include "unit/api/forked_ranks.h"

namespace bimetal::failures {
namespace {

using ::testing::HasSubstr;

/// Nobody can read them while it `fails`.
struct Rows : TensorDataset {
  Rows()
      : TensorDataset({torch::arange(66, torch::kFloat64).view({22, 3}).sin(),
                       torch::arange(22).remainder(5)}) {}
  Values batch(std::span<const std::int64_t> samples) const override {
    if (fails) throw std::runtime_error("the file has ended");
    return TensorDataset::batch(samples);
  }
  bool fails = false;
};

torch::nn::Sequential make_net() {
  torch::nn::Sequential net(torch::nn::Linear(3, 7), torch::nn::Tanh(), torch::nn::Linear(7, 5));
  net->to(torch::kFloat64);
  return net;
}

torch::Tensor mean_loss(const torch::Tensor& logits, const Batch& piece) {
  return torch::nn::functional::cross_entropy(logits, piece.y);
}

/// Trains until something throws: `x_of` within a step, `beside` before it.
struct Loop {
  std::shared_ptr<Rows> data = std::make_shared<Rows>();
  std::function<torch::Tensor(const Batch&)> x_of = [](const Batch& piece) { return piece.x; };
  std::function<void(const Batch&)> beside = [](const Batch&) {};

  void run(const Job& job) const {
    DataParallel trainer(make_net(), job);
    torch::optim::SGD sgd(trainer.parameters(), 0.1);
    for (auto& batch : job.balanced(data, {.global_batch = 6, .epochs = 50})) {
      beside(batch);
      trainer.step(
          sgd, [&](const Batch& piece) { return mean_loss(trainer.forward(x_of(piece)), piece); });
    }
  }
};

Job start() {
  return init(0, nullptr, {.worker = "cpu:threads=1"});
}

/// 0 where the text of what `work` throws has all of `parts`.
int told(const std::function<void()>& work, const std::vector<std::string>& parts) {
  try {
    work();
    ADD_FAILURE() << "nothing was thrown";
  } catch (const std::exception& error) {
    for (const auto& part : parts) EXPECT_THAT(error.what(), HasSubstr(part));
  }
  return ::testing::Test::HasFailure() ? 1 : 0;
}

const std::vector<int> kBothWell = {0, 0};

TEST(Failures, InAUnitEndTheOthersWithTextRankAndUnit) {
  const auto statuses = test::run_forked_ranks(2, [](int rank) {
    const auto job = start();
    Loop loop;
    if (rank == 1) loop.x_of = [](const auto&) { return torch::zeros({4, 2}, torch::kFloat64); };
    const std::string text = "shapes cannot be multiplied (4x2 and 3x7)";
    return told([&] { loop.run(job); }, {"mat1 and mat2 " + text, rank == 1 ? "" : "rank 1",
                                         rank == 1 ? "" : ", unit '0': "});
  });
  EXPECT_EQ(statuses, kBothWell);
}

TEST(Failures, InDataEndTheOthersWithTextAndRank) {
  const auto statuses = test::run_forked_ranks(2, [](int rank) {
    const auto job = start();
    Loop loop;
    loop.data->fails = rank == 1;
    return told([&] { loop.run(job); }, {rank == 1 ? "" : "rank 1", "the file has ended"});
  });
  EXPECT_EQ(statuses, kBothWell);
}

/// No std::exception either.
TEST(Failures, OfAnyKindEndTheOthers) {
  const auto statuses = test::run_forked_ranks(2, [](int rank) {
    const auto job = start();
    Loop loop;
    if (rank == 0) return told([&] { loop.run(job); }, {"rank 1", ": an exception that is no std"});
    loop.x_of = [](const Batch&) -> torch::Tensor { throw 7; };
    try {
      loop.run(job);
    } catch (int number) {
      return number == 7 ? 0 : 1;
    }
    return 1;
  });
  EXPECT_EQ(statuses, kBothWell);
}

std::function<void(const Batch&)> throws_on(int rank) {
  return [rank](const Batch& batch) {
    if (rank == 1 && batch.step == 2) throw std::runtime_error("my own");
  };
}

TEST(Failures, BesideTheStepNameTheirRank) {
  const auto statuses = test::run_forked_ranks(2, [](int rank) {
    Loop loop{.beside = throws_on(rank)};
    return told([&] { loop.run(start()); },
                {rank == 1 ? "my own" : "rank 1: an exception has ended its program (Job::run"});
  });
  EXPECT_EQ(statuses, kBothWell);
}

TEST(Failures, InJobRunEndTheOthersWithTheirText) {
  const auto statuses = test::run_forked_ranks(2, [](int rank) {
    Loop loop{.beside = throws_on(rank)};
    return told(
        [&] {
          const auto job = start();
          job.run([&] { loop.run(job); });
        },
        {rank == 1 ? "" : "rank 1", "my own"});
  });
  EXPECT_EQ(statuses, kBothWell);
}

/// A main() without a try block, which a thread stands for here: what leaves it ends the process.
TEST(Failures, ThatNobodyCatchesEndTheOthersWithTheirText) {
  const auto statuses = test::run_forked_ranks(2, [](int rank) {
    Loop loop{.beside = throws_on(rank)};
    if (rank == 1) std::thread([&] { loop.run(start()); }).join();
    return told([&] { loop.run(start()); }, {"rank 1", ": my own"});
  });
  ASSERT_EQ(statuses.size(), 2);
  EXPECT_EQ(statuses[0], 0);
  EXPECT_NE(statuses[1], 0);  // SIGABRT
}

TEST(Failures, ThatTheProgramExitsUponEndTheOthersWithTheirText) {
  const auto statuses = test::run_forked_ranks(2, [](int rank) {
    Loop loop{.beside = throws_on(rank)};
    return told(
        [&] {
          const auto job = start();
          try {
            job.run([&] { loop.run(job); });
          } catch (...) {
            if (rank == 1) std::_Exit(3);  // nothing is closed
            throw;
          }
        },
        {"rank 1", ": my own"});
  });
  EXPECT_EQ(statuses, (std::vector<int>{0, 3}));
}

/// A destructor is not told which exception is under way; a handler is.
TEST(Failures, InACatchBlockEndTheOthersWithTheirText) {
  const auto statuses = test::run_forked_ranks(2, [](int rank) {
    Loop loop{.beside = throws_on(rank)};
    return told(
        [&] {
          const auto job = start();
          try {
            loop.run(job);
          } catch (...) {
            job.run([] { throw; });
          }
        },
        {rank == 1 ? "" : "rank 1: ", "my own"});
  });
  EXPECT_EQ(statuses, kBothWell);
}

TEST(Failures, AnotherTokenOfOneRankEndsBoth) {
  const test::TemporaryFolder folder;
  const auto statuses = test::run_forked_ranks(2, [&](int rank) {
    const auto file = folder / std::to_string(rank);
    std::ofstream(file) << std::string(64, rank == 0 ? 'a' : 'b') << "\n";
    std::filesystem::permissions(file, std::filesystem::perms::owner_read);
    try {
      init(0, nullptr, {.worker = "cpu:threads=1", .token_file = file});
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::Unauthorized) << error.what();
      EXPECT_THAT(error.what(), HasSubstr(rank == 0 ? "has another token than this job"
                                                    : "the job's token was refused"));
      return ::testing::Test::HasFailure() ? 1 : 0;
    }
    return 1;
  });
  EXPECT_EQ(statuses, kBothWell);
}

}  // namespace
}  // namespace bimetal::failures

// The reports of an own loop to an observer: steps, profiles, evaluations, checkpoints, a report.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/api/include/torch/nn.h>
#include <torch/csrc/api/include/torch/optim.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "bimetal/bimetal.h"
#include "support/temporary_folder.h"
#include "unit/api/forked_ranks.h"

namespace bimetal::watch_test {
namespace {

using ::testing::HasSubstr;

struct Seen : Observer {
  std::vector<Progress> steps;
  std::vector<progress::StepTimes> profiles;
  std::vector<std::int64_t> evaluated, saved;
  void on_step(const Progress& step) override { steps.push_back(step); }
  void on_profile(const progress::StepTimes& times) override { profiles.push_back(times); }
  void on_evaluated(std::int64_t epoch, const progress::Evaluation&) override {
    evaluated.push_back(epoch);
  }
  void on_checkpoint(const std::string&, std::int64_t step) override { saved.push_back(step); }
};

double seconds_in(const progress::StepTimes& times, const std::string& phase) {
  const auto at = std::ranges::find(times.phases, phase) - times.phases.begin();
  double seconds = INFINITY;
  for (const auto& rank : times.seconds) {
    seconds = std::min(seconds, rank.at(static_cast<std::size_t>(at)));
  }
  return seconds;
}

int watch(int rank, const std::filesystem::path& folder) {
  const auto job = init(0, nullptr, {.worker = "cpu:threads=1"});
  const auto seen = std::make_shared<Seen>();
  job.watch(seen);
  const auto data = std::make_shared<TensorDataset>(Values{torch::rand({24, 40}), torch::rand(24)});
  torch::nn::Sequential net(torch::nn::Linear(40, 30), torch::nn::Tanh(), torch::nn::Linear(30, 1));
  DataParallel trainer(net, job);
  torch::optim::SGD sgd(trainer.parameters(), 0.01);
  std::int64_t profiled = 0;
  for (auto& batch :
       job.balanced(data, {.global_batch = 8,
                          .epochs = 2,
                          .profile = train::ProfileRequest{.first_step = 2,
                                     .last_step = 4,
                                     .trace = folder / "trace.json",
                                     .done = [&](const auto& all) { profiled = all.ranks; }}})) {
    trainer.step(sgd, [&](const Batch& piece) {
      return (trainer.forward(piece.x).squeeze(1) - piece.y).square().mean();
    });
    if (batch.step == 3) trainer.save(folder / "checkpoints", sgd);
  }
  trainer.evaluate(data,
                   [&](const Batch& batch) { return Values{trainer.forward(batch.x).sum()}; });

  EXPECT_EQ(seen->steps.size(), 6);
  EXPECT_THAT(progress_line(seen->steps.at(4)), HasSubstr("step 5/6"));
  EXPECT_EQ(seen->saved, std::vector<std::int64_t>{3});
  EXPECT_EQ(seen->evaluated, std::vector<std::int64_t>{2});
  EXPECT_EQ(seen->profiles.size(), rank == 0 ? 1 : 0);
  EXPECT_EQ(profiled, rank == 0 ? 2 : 0);
  for (const auto& times : seen->profiles) {
    EXPECT_EQ(times.last_step, 4);
    for (const auto* phase : {"data", "forward", "backward", "wait", "update"}) {
      EXPECT_GT(seconds_in(times, phase), 0) << phase;
    }
    EXPECT_TRUE(std::filesystem::exists(folder / "trace.json"));
  }
  const auto report = job.report();
  EXPECT_EQ(report.workers.size(), 2);
  EXPECT_EQ(report.workers.at(0).samples + report.workers.at(1).samples, 48);
  EXPECT_THAT(to_json(report), HasSubstr("\"steps\": 6"));
  return ::testing::Test::HasFailure() ? 1 : 0;
}

TEST(Watch, AnOwnLoopTellsWhatAJobTells) {
  const test::TemporaryFolder folder;
  EXPECT_EQ(test::run_forked_ranks(2, [&](int rank) { return watch(rank, folder.path()); }),
            (std::vector<int>{0, 0}));
}

}  // namespace
}  // namespace bimetal::watch_test

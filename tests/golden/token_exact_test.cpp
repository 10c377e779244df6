// The same promise for means over tokens: samples of unequal weight, dealt out by weight, give the
// gradient of the mean over all tokens of the global batch.

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <ostream>
#include <string>
#include <vector>

#include "bimetal/data/sampler.h"
#include "golden/server_job.h"
#include "golden/tasks.h"
#include "golden/training_run.h"

namespace bimetal::golden {
namespace {

/// 200 sequences in batches of 24: each epoch's ninth and last step has 8.
constexpr std::int64_t batch = 24;

/// What nobody has cut, weighed or shared out: torch's own mean over the batch's targets.
std::vector<torch::Tensor> train_plainly() {
  const TokenTask task;
  const auto model = make_start(task, seed + 100);
  torch::optim::Adam adam(model.parameters(), torch::optim::AdamOptions(1e-3));
  data::EpochSampler sampler(sample_count, seed);
  for (int step = 0; step < training_steps; ++step) {
    const auto samples = sampler.next(std::vector<std::int64_t>{batch}).indices;
    const auto values = task.training()->batch(samples);
    const auto logits = task::run_units(model, task.inputs(values)).front();
    adam.zero_grad();
    torch::nn::functional::cross_entropy(logits.flatten(0, 1), values.back().flatten()).backward();
    adam.step();
  }
  return model.parameters();
}

struct TokenCase {
  std::string name;
  std::vector<std::vector<std::int64_t>> shares;
  std::int64_t micro_batch = 1000;
};

void PrintTo(const TokenCase& shown, std::ostream* out) {
  *out << shown.name;
}

const TokenCase token_cases[] = {
    {"OneWorker", {{24}}},
    {"OneWorkerInMicroBatches", {{24}}, 5},
    {"TwoWorkers", {{17, 7}}},
    {"TwoWorkersOneAtRest", {{24, 0}, {5, 19}, {0, 24}}},
    {"ThreeWorkersInMicroBatches", {{13, 11, 0}, {0, 23, 1}, {8, 8, 8}}, 4},
};

class TokenExact : public ::testing::TestWithParam<TokenCase> {};

TEST_P(TokenExact, ParametersAgreeWithTheMeanOverTokens) {
  const auto trained = train({.learns = Learns::tokens,
                              .optimizer = Optimizer::adam,
                              .shares = GetParam().shares,
                              .micro_batch = GetParam().micro_batch});
  EXPECT_LT(trained.losses.back(), 0.97 * trained.losses.front());
  EXPECT_LE(largest_difference(trained.parameters, train_plainly()), 1e-12);
}

INSTANTIATE_TEST_SUITE_P(Shares, TokenExact, ::testing::ValuesIn(token_cases),
                         [](const auto& param) { return param.param.name; });

const ServerCase server_cases[] = {
    {.name = "OneWorker", .rates = {300}, .servers = {1}},
    {.name = "TwoUnequalWorkers", .rates = {300, 100}, .servers = {2, 1}, .overlaps = true},
    {.name = "TwoUnequalWorkersRecompute",
     .rates = {300, 100},
     .servers = {2, 1},
     .overlaps = true,
     .recompute = 1},
    {.name = "ThreeWorkersOneIsLost", .rates = {300, 100, 100}, .servers = {1}, .lost_after = 3},
    {.name = "BoundedByZero",
     .rates = {300, 100},
     .servers = {1, 1},
     .consistency = Consistency::bounded},
};

class TokenServers : public ::testing::TestWithParam<ServerCase> {};

TEST_P(TokenServers, ParametersAgreeWithOneDevice) {
  const TokenTask task;
  const auto alone = train_alone(task, false);
  ServerJob job(GetParam(), task);
  job.run();
  EXPECT_LE(largest_difference(job.parameters(), alone), 1e-12);
}

INSTANTIATE_TEST_SUITE_P(Jobs, TokenServers, ::testing::ValuesIn(server_cases),
                         [](const auto& param) { return param.param.name; });

}  // namespace
}  // namespace bimetal::golden

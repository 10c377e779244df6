// The same promise for language models: GPT-2's and Llama's blocks, with dropout, by all-reduce and
// by parameter servers, against one device that computes each batch whole.

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <map>
#include <memory>
#include <ostream>
#include <string>
#include <tuple>
#include <vector>

#include "golden/server_job.h"
#include "golden/tasks.h"
#include "golden/training_run.h"

namespace bimetal::golden {

void PrintTo(Learns learns, std::ostream* out) {
  *out << (learns == Learns::gpt2 ? "Gpt2" : "Llama");
}

namespace {

/// 200 sequences in batches of 24: each epoch's ninth and last step has 8.
constexpr std::int64_t batch = 24;

// Without Adam: gradients that are 0 but for rounding (of the keys' biases) would be divided by
// themselves.
constexpr Optimizer optimizer = Optimizer::sgd_momentum;

TrainingResult train_plainly(Learns learns, double dropout) {
  const auto task = make_task({.learns = learns, .dropout = dropout});
  const auto model = make_start(*task, seed + 100);
  torch::optim::SGD sgd(model.parameters(), torch::optim::SGDOptions(0.02).momentum(0.9));
  data::EpochSampler sampler(sample_count, seed);
  TrainingResult result;
  for (int step = 0; step < training_steps; ++step) {
    const auto samples = sampler.next(std::vector<std::int64_t>{batch});
    sgd.zero_grad();
    const auto loss = mean_loss(*task, model, samples.epoch, samples.indices);
    loss.backward();
    sgd.step();
    result.losses.push_back(loss.item<double>());
  }
  result.parameters = model.parameters();
  return result;
}

const TrainingResult& alone(Learns learns, double dropout) {
  static std::map<std::tuple<Learns, double>, TrainingResult> known;
  const auto [place, fresh] = known.try_emplace({learns, dropout});
  if (fresh) place->second = train_plainly(learns, dropout);
  return place->second;
}

struct LanguageCase {
  std::string name;
  std::vector<std::vector<std::int64_t>> shares;
  std::int64_t micro_batch = 1000;
};

void PrintTo(const LanguageCase& shown, std::ostream* out) {
  *out << shown.name;
}

const LanguageCase language_cases[] = {
    {"OneWorker", {{24}}},
    {"OneWorkerInMicroBatches", {{24}}, 5},
    {"TwoWorkers", {{17, 7}}},
    {"TwoWorkersOneAtRest", {{24, 0}, {5, 19}, {0, 24}}},
    {"ThreeWorkersInMicroBatches", {{13, 11, 0}, {0, 23, 1}, {8, 8, 8}}, 4},
};

class LanguageExact
    : public ::testing::TestWithParam<std::tuple<LanguageCase, Learns, double /* dropout */>> {};

TEST_P(LanguageExact, ParametersAgreeWithOneDevice) {
  const auto& [shown, learns, dropout] = GetParam();
  const auto trained = train({.learns = learns,
                              .dropout = dropout,
                              .optimizer = optimizer,
                              .shares = shown.shares,
                              .micro_batch = shown.micro_batch});
  EXPECT_LE(largest_difference(trained.parameters, alone(learns, dropout).parameters), 1e-12);
}

INSTANTIATE_TEST_SUITE_P(Shares, LanguageExact,
                         ::testing::Combine(::testing::ValuesIn(language_cases),
                                            ::testing::Values(Learns::gpt2, Learns::llama),
                                            ::testing::Values(0.0, 0.1)),
                         [](const auto& param) {
                           return std::get<0>(param.param).name +
                                  ::testing::PrintToString(std::get<1>(param.param)) +
                                  (std::get<2>(param.param) > 0 ? "Dropout" : "");
                         });

const ServerCase server_cases[] = {
    {.name = "TwoUnequalWorkers", .rates = {300, 100}, .servers = {2, 1}, .overlaps = true},
    {.name = "ThreeWorkersOneIsLost", .rates = {300, 100, 100}, .servers = {1}, .lost_after = 3},
};

class LanguageServers : public ::testing::TestWithParam<std::tuple<ServerCase, Learns>> {};

TEST_P(LanguageServers, ParametersAgreeWithOneDevice) {
  const auto& [shown, learns] = GetParam();
  const auto task = make_task({.learns = learns, .dropout = 0.1});
  const auto expected = train_alone(*task, false);
  ServerJob job(shown, *task);
  job.run();
  EXPECT_LE(largest_difference(job.parameters(), expected), 1e-12);
}

INSTANTIATE_TEST_SUITE_P(Jobs, LanguageServers,
                         ::testing::Combine(::testing::ValuesIn(server_cases),
                                            ::testing::Values(Learns::gpt2, Learns::llama)),
                         [](const auto& param) {
                           return std::get<0>(param.param).name +
                                  ::testing::PrintToString(std::get<1>(param.param));
                         });

struct Curve {
  Learns learns;
  std::vector<double> losses;  ///< of every tenth step, with dropout
};

void PrintTo(const Curve& shown, std::ostream* out) {
  PrintTo(shown.learns, out);
}

class LanguageLosses : public ::testing::TestWithParam<Curve> {};

// What the models computed when they agreed with transformers' and with one device: who changes it
// should mean to.
TEST_P(LanguageLosses, InFloat32AreThoseOnRecord) {
  const auto trained = train({.learns = GetParam().learns,
                              .dropout = 0.1,
                              .dtype = torch::kFloat32,
                              .optimizer = optimizer,
                              .shares = {{17, 7}}});
  for (std::size_t i = 0; i < GetParam().losses.size(); ++i) {
    EXPECT_NEAR(trained.losses.at(10 * i + 9), GetParam().losses[i], 1e-3)
        << "step " << 10 * i + 10;
  }
}

INSTANTIATE_TEST_SUITE_P(
    Models, LanguageLosses,
    ::testing::Values(Curve{Learns::gpt2, {2.31146, 2.22411, 2.17140, 2.15073, 2.09589}},
                      Curve{Learns::llama, {2.14449, 1.63497, 1.37343, 1.26102, 1.22114}}),
    [](const auto& param) { return ::testing::PrintToString(param.param); });

// The tests must be able to fail.
TEST(LanguageExactness, TheTrainingIsNotTrivial) {
  for (const auto learns : {Learns::gpt2, Learns::llama}) {
    const auto& plain = alone(learns, 0);
    EXPECT_LT(plain.losses.back(), 0.97 * plain.losses.front());
    EXPECT_GT(largest_difference(alone(learns, 0.1).parameters, plain.parameters), 1e-4);
  }
}

}  // namespace
}  // namespace bimetal::golden

// A small GPT in stages whose links are all shortened learns what it would have learnt, nearly.

#include <gtest/gtest.h>
#include <torch/csrc/api/include/torch/optim.h>
#include <torch/csrc/api/include/torch/types.h>
#include <torch/csrc/api/include/torch/utils.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "bimetal/models/language/language_model.h"
#include "bimetal/parallel/pipeline/loop_stage.h"
#include "support/thread_ranks.h"

namespace bimetal::parallel::pipeline {
namespace {

using comm::Scheme;
using schedule::Kind;

constexpr std::int64_t kVocabulary = 13, kContext = 16, kBatch = 12, kMicroBatches = 5;
constexpr int kLearningSteps = 60;

/// Its units: embedding, three blocks, head, which is tied to the embedding.
task::Model make_gpt() {
  torch::manual_seed(7);
  auto model = models::make_language_model(
      models::resized(models::language_preset("gpt2"), {.layers = 3,
                                                        .width = 32,
                                                        .heads = 4,
                                                        .kv_heads = 4,
                                                        .hidden = 64,
                                                        .context = kContext,
                                                        .vocabulary = kVocabulary}));
  model.to(torch::kCPU, torch::kFloat64);
  return model;
}

/// Samples × tokens of step `step`, and a token more: mostly the one before and 3, as the first
/// one says to go up or down.
torch::Tensor tokens_of(int step) {
  auto tokens = torch::empty({kBatch, kContext + 1}, torch::kInt64);
  auto at = tokens.accessor<std::int64_t, 2>();
  std::uint64_t draw = 1000 + static_cast<std::uint64_t>(step);
  const auto next = [&] {
    draw = draw * 6364136223846793005u + 1442695040888963407u;
    return draw >> 40;
  };
  for (std::int64_t i = 0; i < kBatch; ++i) {
    at[i][0] = static_cast<std::int64_t>(next() % kVocabulary);
    const std::int64_t stride = at[i][0] % 2 == 0 ? 3 : kVocabulary - 3;
    for (std::int64_t j = 1; j <= kContext; ++j) {
      const bool noise = next() % 16 == 0;
      at[i][j] = noise ? static_cast<std::int64_t>(next() % kVocabulary)
                       : (at[i][j - 1] + stride) % kVocabulary;
    }
  }
  return tokens;
}

torch::Tensor inputs_of(const torch::Tensor& tokens) {
  return tokens.narrow(1, 0, kContext).contiguous();
}

torch::Tensor loss_sum_of(const torch::Tensor& logits, const torch::Tensor& tokens) {
  return torch::cross_entropy_loss(logits.flatten(0, 1), tokens.narrow(1, 1, kContext).flatten(),
                                   {}, at::Reduction::Sum);
}

torch::optim::Adam adam_of(const task::Model& model) {
  return torch::optim::Adam(model.parameters(), torch::optim::AdamOptions(3e-3));
}

/// The mean loss of each step, by one device.
const std::vector<double>& exact_losses() {
  static const auto all = [] {
    const auto model = make_gpt();
    auto optimizer = adam_of(model);
    std::vector<double> losses;
    for (int step = 0; step < kLearningSteps; ++step) {
      const auto tokens = tokens_of(step);
      optimizer.zero_grad();
      const auto loss = loss_sum_of(task::run_units(model, {inputs_of(tokens)}).front(), tokens) /
                        (kBatch * kContext);
      loss.backward();
      optimizer.step();
      losses.push_back(loss.item<double>());
    }
    return losses;
  }();
  return all;
}

struct Staged {
  std::string name;
  Scheme scheme;
  std::vector<std::int64_t> cuts;
  Kind kind = Kind::one_f_one_b;
  int chunks = 1;

  int stages() const { return static_cast<int>(cuts.size() + 1) / chunks; }
};

void PrintTo(const Staged& shown, std::ostream* out) {
  *out << shown.name;
}

/// One rank's part of it, its micro-batches of 3 and of 2 samples.
std::vector<double> learn_as(const Staged& how, comm::Group group, const task::Model& model) {
  const int stage = group.rank();
  const auto begins = begins_of(how.cuts, how.cuts.size() + 1, model.units.size());
  const auto own = make_stage(model, begins, how.stages(), stage);
  LoopStage loop(group, {how.stages(), 1, 1}, own.model, own.tied,
                 {.schedule = how.kind,
                  .chunks = how.chunks,
                  .compression = {how.scheme, comm::CompressedLinks::all}});
  auto optimizer = adam_of(own.model);
  const auto sizes = schedule::micro_batch_sizes(kBatch, kMicroBatches + how.chunks - 1);
  std::vector<double> losses;
  for (int step = 0; step < kLearningSteps; ++step) {
    const auto pieces = tokens_of(step).split_with_sizes(sizes);
    optimizer.zero_grad();
    const auto loss = loop.train(
        {.samples = sizes, .weight = kBatch * kContext, .digest = step}, 1,
        [&](int chunk, int micro_batch, const task::Values& inputs) -> task::Values {
          const auto& tokens = pieces[static_cast<std::size_t>(micro_batch)];
          auto outputs = task::run_units(own.pieces[static_cast<std::size_t>(chunk)],
                                         inputs.empty() ? task::Values{inputs_of(tokens)} : inputs);
          const bool ends = stage + 1 == how.stages() && chunk + 1 == how.chunks;
          if (ends) outputs = {loss_sum_of(outputs.front(), tokens)};
          return outputs;
        });
    losses.push_back(loss.value());
    optimizer.step();
  }
  return losses;
}

std::vector<double> learn(const Staged& how) {
  std::vector<task::Model> copies;
  for (int stage = 0; stage < how.stages(); ++stage) copies.push_back(make_gpt());
  std::vector<double> losses;
  testing::run_ranks(how.stages(), [&](int rank, comm::Group group) {
    auto own = learn_as(how, std::move(group), copies[static_cast<std::size_t>(rank)]);
    if (rank == 0) losses = std::move(own);
  });
  return losses;
}

/// The fraction by which these losses exceed the exact ones, step by step.
std::vector<double> misses_of(const std::vector<double>& losses) {
  const auto& exact = exact_losses();
  EXPECT_EQ(losses.size(), exact.size());
  std::vector<double> misses;
  for (std::size_t i = 0; i < losses.size(); ++i) misses.push_back(losses[i] / exact[i] - 1);
  return misses;
}

double largest_miss(const std::vector<double>& losses) {
  double largest = 0;
  for (const double miss : misses_of(losses)) largest = std::max(largest, std::abs(miss));
  return largest;
}

double mean_miss(const std::vector<double>& losses) {
  const auto misses = misses_of(losses);
  return std::reduce(misses.begin(), misses.end()) / static_cast<double>(misses.size());
}

class CompressedLearning : public ::testing::TestWithParam<Staged> {};

// Single losses are of 192 tokens by parameters that go another way: they differ more than the way
// does.
TEST_P(CompressedLearning, ComesNearlyToTheSameLosses) {
  const auto losses = learn(GetParam());
  EXPECT_LT(std::abs(mean_miss(losses)), 0.02);
  EXPECT_LT(largest_miss(losses), 0.15);
  EXPECT_GT(largest_miss(losses), 1e-8) << "nothing was shortened";
  EXPECT_LT(losses.back(), 0.6 * losses.front());
}

INSTANTIATE_TEST_SUITE_P(
    Rows, CompressedLearning,
    ::testing::Values(Staged{"Two", Scheme::int8, {2}},
                      Staged{"TwoGpipe", Scheme::int8, {3}, Kind::gpipe},
                      Staged{"TwoInterleaved", Scheme::int8, {1, 2, 3}, Kind::interleaved, 2},
                      Staged{"TwoInHalf", Scheme::bfloat16, {2}},
                      Staged{"TwoInFloat16", Scheme::float16, {2}},
                      Staged{"Three", Scheme::int8, {2, 3}},
                      Staged{"ThreeZeroBubble", Scheme::int8, {1, 3}, Kind::zero_bubble}),
    [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace bimetal::parallel::pipeline

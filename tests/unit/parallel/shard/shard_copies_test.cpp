#include "bimetal/parallel/shard/shard_copies.h"

#include <gtest/gtest.h>
#include <torch/csrc/api/include/torch/nn.h>
#include <torch/csrc/api/include/torch/optim.h>
#include <torch/csrc/api/include/torch/utils.h>

#include <map>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "bimetal/parallel/shard/sharded_model.h"
#include "support/thread_ranks.h"

namespace bimetal::parallel::shard {
namespace {

std::vector<FlatPlan> plans_of(std::vector<double> weights) {
  const std::vector<ParameterPlace> parameters = {{.count = 30}, {.count = 50, .unit = 1}};
  return plan_flats(parameters, weights, 0);
}

TEST(ShardBuddies, TheNextRankWithAShardHasTheCopy) {
  const auto plans = plans_of({3, 0, 1, 2});
  EXPECT_EQ(buddies_of(plans, 0), (Buddies{.of = 3, .at = 2}));
  EXPECT_EQ(buddies_of(plans, 1), (Buddies{}));
  EXPECT_EQ(buddies_of(plans, 2), (Buddies{.of = 0, .at = 3}));
  EXPECT_EQ(buddies_of(plans, 3), (Buddies{.of = 2, .at = 0}));
}

TEST(ShardBuddies, OneShardHasNoCopy) {
  EXPECT_EQ(buddies_of(plans_of({0, 1}), 1), (Buddies{}));
  EXPECT_EQ(buddies_of(plans_of({1}), 0), (Buddies{}));
}

task::Model small_model() {
  torch::manual_seed(1);
  task::Model model;
  for (int i = 0; i < 3; ++i) {
    auto layer = std::make_shared<torch::nn::LinearImpl>(5, 5);
    layer->to(torch::kFloat64);
    model.units.push_back(task::make_unit(
        "layer" + std::to_string(i), layer,
        [layer](torch::Tensor input) { return torch::tanh(layer->forward(input)); }));
  }
  return model;
}

/// By parameter and first element: what ranks have of it, and what its copies are.
using Kept = std::map<std::pair<std::string, std::int64_t>, torch::Tensor>;

class ShardCopy : public ::testing::TestWithParam<int> {};

TEST_P(ShardCopy, StaysWhatItIsTheCopyOf) {
  std::vector<task::Model> models = {small_model(), small_model(), small_model()};
  std::mutex mutex;
  Kept own, copied;
  testing::run_ranks(3, [&](int rank, comm::Group group) {
    ShardedModel sharded(models[static_cast<std::size_t>(rank)], group,
                         {.level = GetParam(),
                          .weights = {5, 0, 2},
                          .flat_bytes = 1,
                          .timeout = std::chrono::seconds(20),
                          .copies = true});
    EXPECT_TRUE(sharded.keeps_copies());
    EXPECT_EQ(sharded.copy_of(), (std::vector<int>{2, -1, 0})[static_cast<std::size_t>(rank)]);
    std::vector<torch::Tensor> pieces;
    for (const auto& piece : sharded.pieces()) pieces.push_back(piece.tensor);
    const bool steps = !pieces.empty();
    if (!steps) pieces.push_back(torch::zeros({1}).set_requires_grad(true));
    torch::optim::SGD sgd(pieces, torch::optim::SGDOptions(0.1).momentum(0.9));
    for (int step = 0; step < 4; ++step) {
      sharded.begin_step(6);
      const auto input = torch::full({2, 5}, rank + step + 1.0, torch::kFloat64);
      sharded.backward_last(task::run_units(sharded.model(), {input}).front().sum(), 2);
      sharded.finish_step();
      if (steps) sgd.step();
      sharded.after_update();
    }
    const std::lock_guard lock(mutex);
    for (const auto& piece : sharded.pieces()) {
      EXPECT_EQ(sharded.counts(piece.tensor), !piece.copy);
      (piece.copy ? copied : own)[{piece.parameter, piece.range.offset}] =
          piece.tensor.detach().clone();
    }
  });
  ASSERT_FALSE(own.empty());
  ASSERT_EQ(own.size(), copied.size());
  for (const auto& [place, values] : own) {
    ASSERT_TRUE(copied.contains(place)) << place.first;
    EXPECT_TRUE(values.equal(copied.at(place))) << place.first;
    EXPECT_GT(values.abs().max().item<double>(), 0);
  }
}

INSTANTIATE_TEST_SUITE_P(Levels, ShardCopy, ::testing::Values(1, 2, 3));

}  // namespace
}  // namespace bimetal::parallel::shard

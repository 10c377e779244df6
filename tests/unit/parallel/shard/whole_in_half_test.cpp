// Levels 1 and 2 where all ranks compute in bfloat16: parameters are whole in it from step to step,
// and kept in float32.

#include <gtest/gtest.h>
#include <torch/csrc/api/include/torch/nn.h>
#include <torch/csrc/api/include/torch/types.h>
#include <torch/csrc/api/include/torch/utils.h>

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "bimetal/optim/cpu_adam.h"
#include "bimetal/parallel/shard/sharded_model.h"
#include "bimetal/parallel/shard/unit_gathers.h"
#include "bimetal/precision/precision.h"
#include "bimetal/task/task.h"
#include "support/thread_ranks.h"

namespace bimetal::parallel::shard {
namespace {

/// Linear layers; their biases are used for nothing but products, either.
task::Model make_layers(std::uint64_t seed) {
  torch::manual_seed(seed);
  task::Model model;
  for (int i = 0; i < 3; ++i) {
    auto layer = std::make_shared<torch::nn::LinearImpl>(4, 4);
    model.units.push_back(task::make_unit(
        "layer" + std::to_string(i), layer,
        [layer](torch::Tensor input) { return torch::tanh(layer->forward(input)); }));
  }
  return model;
}

torch::Tensor forward(const task::Model& model) {
  return task::run_units(model, {torch::ones({2, 4})}).front();
}

class InHalf : public ::testing::TestWithParam<int> {
 protected:
  ShardedModelOptions options() const {
    return {.level = GetParam(),
            .weights = {3, 1},
            .flat_bytes = 1,
            .timeout = std::chrono::seconds(20),
            .form = {.half = torch::kBFloat16}};
  }
};

std::vector<torch::Tensor> kept_by_all(const ShardedModel& sharded) {
  return task::tensors_of(
      sharded.gather([](const Piece& piece) { return piece.tensor; }, ShardedModel::kEveryRank));
}

void expect_rounded(const ShardedModel& sharded) {
  const auto kept = kept_by_all(sharded);
  const auto& whole = sharded.trained();
  for (std::size_t i = 0; i < whole.size(); ++i) {
    EXPECT_EQ(kept[i].scalar_type(), torch::kFloat32);
    EXPECT_EQ(whole[i].tensor.scalar_type(), torch::kBFloat16);
    EXPECT_TRUE(whole[i].tensor.equal(kept[i].to(torch::kBFloat16))) << whole[i].name;
  }
}

// As a checkpoint does, or an optimizer that tells of nothing.
TEST_P(InHalf, WhatIsPutIntoPiecesIsRoundedForAll) {
  std::vector<task::Model> models = {make_layers(1), make_layers(1)};
  testing::run_ranks(2, [&](int rank, comm::Group group) {
    ShardedModel sharded(models[static_cast<std::size_t>(rank)], group, options());
    {
      const torch::NoGradGuard no_grad;
      for (const auto& piece : sharded.pieces()) torch::Tensor(piece.tensor).fill_(1.0 / 3);
    }
    sharded.after_update();
    expect_rounded(sharded);
    sharded.whole_changed();  // leaves what is kept as it is
    EXPECT_EQ(kept_by_all(sharded)[0][0][0].item<float>(), 1.0F / 3);
  });
}

INSTANTIATE_TEST_SUITE_P(Levels, InHalf, ::testing::Values(1, 2));

// Updated parts on their way to all ranks.

/// Three flat tensors of one parameter of six elements each, of which rank 0 keeps four, and of the
/// second all.
std::vector<FlatPlan> three_plans() {
  std::vector<FlatPlan> plans(3);
  for (std::size_t flat = 0; flat < plans.size(); ++flat) {
    plans[flat].slots = {{.parameter = flat, .offset = 0, .count = 6}};
    plans[flat].count = 6;
    plans[flat].counts = {4, 2};
  }
  plans[1].counts = {6, 0};
  return plans;
}

/// Parts that each rank has set to a number of its own, told of in the order given.
void update(WholeRenewal& renewal, std::vector<FlatParameters>& flats, double value,
            const std::vector<std::size_t>& order) {
  const torch::NoGradGuard no_grad;
  for (const auto& flat : flats) torch::Tensor(flat.own()).fill_(value);
  for (const auto flat : order) renewal.updated(flat);
}

void expect_whole(const std::vector<FlatParameters>& flats, double value) {
  for (std::size_t flat = 0; flat < flats.size(); ++flat) {
    const auto first = flat == 1 ? 6 : 4;
    const auto& whole = flats[flat].whole();
    EXPECT_TRUE(whole.narrow(0, 0, first).eq(value).all().item<bool>()) << flat << whole;
    EXPECT_TRUE(whole.narrow(0, first, 6 - first).eq(value + 1).all().item<bool>())
        << flat << whole;
  }
}

TEST(WholeRenewal, RanksMayUpdateInUnlikeOrdersAndLeavePiecesOut) {
  testing::run_ranks(2, [](int rank, comm::Group group) {
    const auto plans = three_plans();
    std::vector<torch::Tensor> parameters;
    std::vector<FlatParameters> flats;
    for (const auto& plan : plans) {
      parameters.push_back(torch::zeros({6}));
      flats.emplace_back(plan, std::vector{parameters.back()}, rank);
    }
    // The second has no piece on rank 1, and the third two on rank 0.
    const std::vector<WholeRenewal::Flat> renewed = {
        {0, 1}, {1, rank == 0 ? std::size_t{1} : std::size_t{0}}, {2, rank == 0 ? 2U : 1U}};
    ExchangeSpan span;
    WholeRenewal renewal(renewed, plans, flats, {group}, span, std::chrono::seconds(20));

    update(renewal, flats, 10 + rank,
           rank == 0 ? std::vector<std::size_t>{2, 1, 0, 2} : std::vector<std::size_t>{0, 2});
    renewal.complete();
    expect_whole(flats, 10);
    EXPECT_EQ(parameters[0][5].item<float>(), 11);

    // A piece without a gradient; all without one; and one told of too often.
    update(renewal, flats, 20 + rank,
           rank == 0 ? std::vector<std::size_t>{0, 1} : std::vector<std::size_t>{0, 2, 2});
    renewal.complete();
    expect_whole(flats, 20);
    update(renewal, flats, 30 + rank, {});
    renewal.complete();
    expect_whole(flats, 30);
    EXPECT_GE(span.waited, 0);
  });
}

// The exchange of a piece begins while the optimizer still goes on: the first need not wait for
// all.
TEST(WholeRenewal, BeginsWithWhatIsThrough) {
  testing::run_ranks(2, [](int rank, comm::Group group) {
    const auto plans = three_plans();
    std::vector<FlatParameters> flats;
    for (const auto& plan : plans) flats.emplace_back(plan, std::vector{torch::zeros({6})}, rank);
    ExchangeSpan span;
    WholeRenewal renewal({{0, 1}, {2, 1}}, plans, flats, {group}, span, std::chrono::seconds(20));
    update(renewal, flats, 5 + rank, {0});
    const auto& other = flats[0].whole()[rank == 0 ? 5 : 0];
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    while (other.item<float>() == 0 && std::chrono::steady_clock::now() < end) {
    }
    EXPECT_EQ(other.item<float>(), rank == 0 ? 6 : 5);
    EXPECT_EQ(flats[2].whole()[rank == 0 ? 5 : 0].item<float>(), 0);
    renewal.complete();
    EXPECT_EQ(flats[2].whole()[rank == 0 ? 5 : 0].item<float>(), rank == 0 ? 6 : 5);
  });
}

}  // namespace
}  // namespace bimetal::parallel::shard

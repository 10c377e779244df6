// Levels 1 and 2 where all ranks compute in bfloat16: parameters are whole in it from step to step,
// and kept in float32.

#include <gtest/gtest.h>
#include <torch/csrc/api/include/torch/nn.h>
#include <torch/csrc/api/include/torch/optim.h>
#include <torch/csrc/api/include/torch/utils.h>

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "bimetal/optim/cpu_adam.h"
#include "bimetal/parallel/shard/sharded_model.h"
#include "bimetal/precision/autocast.h"
#include "bimetal/task/model_state.h"
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

torch::Tensor loss_in_bfloat16(const task::Model& model) {
  const precision::Autocast cast(torch::kCPU, precision::Precision::bfloat16);
  return forward(model).to(torch::kFloat32).sum();
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

TEST_P(InHalf, TheUpdateWritesWhatAllRanksGet) {
  std::vector<task::Model> models = {make_layers(1), make_layers(2)};
  testing::run_ranks(2, [&](int rank, comm::Group group) {
    const auto sharded =
        std::make_shared<ShardedModel>(models[static_cast<std::size_t>(rank)], group, options());
    expect_rounded(*sharded);
    std::vector<torch::Tensor> pieces;
    for (const auto& piece : sharded->pieces()) pieces.push_back(piece.tensor);
    optim::CpuAdamW optimizer(pieces, torch::optim::AdamWOptions(0.1));
    follow_update(sharded, optimizer);
    for (int step = 0; step < 3; ++step) {
      sharded->begin_step(4);
      sharded->backward(loss_in_bfloat16(sharded->model()));
      sharded->backward_last(loss_in_bfloat16(sharded->model()));
      sharded->finish_step();
      optimizer.step();
      for (const auto& piece : pieces) {
        EXPECT_EQ(piece.grad().scalar_type(), torch::kFloat32);
        EXPECT_TRUE(sharded->bfloat16_of(piece).equal(piece.to(torch::kBFloat16)));
      }
      sharded->after_update();
      expect_rounded(*sharded);
    }
  });
}

TEST_P(InHalf, OtherPassesComputeWithWhatIsKept) {
  std::vector<task::Model> models = {make_layers(1), make_layers(1)};
  const auto expected = forward(make_layers(1));
  testing::run_ranks(2, [&](int rank, comm::Group group) {
    ShardedModel sharded(models[static_cast<std::size_t>(rank)], group, options());
    for (int round = 0; round < 2; ++round) {
      sharded.begin_passes();
      const torch::NoGradGuard no_grad;
      EXPECT_TRUE(forward(sharded.model()).equal(expected));
      sharded.end_passes();
      expect_rounded(sharded);
    }
  });
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

}  // namespace
}  // namespace bimetal::parallel::shard

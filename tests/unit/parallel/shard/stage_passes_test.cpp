// Passes of a pipeline's stages over a model in shards of gradients.

#include <gtest/gtest.h>
#include <torch/csrc/api/include/torch/types.h>
#include <torch/csrc/api/include/torch/utils.h>

#include <algorithm>
#include <chrono>
#include <stdexcept>
#include <string>
#include <vector>

#include "bimetal/base/error.h"
#include "bimetal/parallel/shard/flat_parameters.h"
#include "bimetal/parallel/shard/sharded_model.h"
#include "support/thread_ranks.h"

namespace bimetal::parallel::shard {
namespace {

/// One parameter of each of three units, the same on all ranks.
task::Model make_stage_model() {
  task::Model model;
  for (int i = 0; i < 3; ++i) {
    const auto weight = torch::full({4}, i + 1.0, torch::kFloat64).set_requires_grad(true);
    model.units.push_back({.name = "unit" + std::to_string(i),
                           .parameters = {{"weight" + std::to_string(i), weight}},
                           .buffers = {},
                           .forward = [weight](const task::Values& values) -> task::Values {
                             return {values.front() * weight};
                           }});
  }
  return model;
}

ShardedModelOptions stage_options(const task::Model& model, int level = 2) {
  return {.level = level,
          .weights = {3, 1},
          .flat_bytes = 1,
          .folder = {},
          .timeout = std::chrono::seconds(20),
          .stage = StagePasses{.late = {model.units[0].parameters[0].tensor}}};
}

void pass(ShardedModel& sharded, double times, bool last = false) {
  const auto input = torch::full({4}, times, torch::kFloat64);
  const auto loss = task::run_units(sharded.model(), {input}).front().sum();
  sharded.run_pass([&] { (loss * sharded.loss_factor()).backward(); }, last);
}

/// The gradient of weight i: the product of the others, of all passes and ranks together.
void expect_sums(const ShardedModel& sharded, double sum) {
  for (const auto& piece : sharded.pieces()) {
    const double own = piece.parameter.back() - '0' + 1.0;
    ASSERT_TRUE(piece.tensor.grad().defined()) << piece.parameter;
    EXPECT_TRUE(piece.tensor.grad().allclose(torch::full_like(piece.tensor, sum * 6 / own)))
        << piece.parameter << piece.tensor.grad();
  }
}

/// At levels 2 and 3.
class StagePassesAt : public ::testing::TestWithParam<int> {};

INSTANTIATE_TEST_SUITE_P(Levels, StagePassesAt, ::testing::Values(2, 3),
                         [](const auto& info) { return std::to_string(info.param); });

TEST(StagePasses, GradientsAreGoneBehindAPassButThoseThatOthersAddTo) {
  std::vector<task::Model> models = {make_stage_model(), make_stage_model()};
  testing::run_ranks(2, [&](int rank, comm::Group group) {
    const auto& model = models[static_cast<std::size_t>(rank)];
    ShardedModel sharded(model, group, stage_options(model));
    const auto tensors = model.parameters();
    sharded.begin_step(1);
    sharded.expect_passes(2);
    pass(sharded, 1);
    EXPECT_FALSE(tensors[1].grad().defined());
    EXPECT_FALSE(tensors[2].grad().defined());
    pass(sharded, 1, true);
    ASSERT_TRUE(tensors[0].grad().defined());
    EXPECT_TRUE(tensors[0].grad().equal(torch::full_like(tensors[0], 12.0)));
    tensors[0].mutable_grad().add_(5);
    sharded.finish_step();
    for (const auto& piece : sharded.pieces()) {
      if (piece.parameter != "weight0") continue;
      EXPECT_TRUE(piece.tensor.grad().equal(torch::full_like(piece.tensor, 34.0)));
    }
  });
}

TEST_P(StagePassesAt, WhatStopsInTheMiddleOfOneHangsNobody) {
  std::vector<task::Model> models = {make_stage_model(), make_stage_model()};
  testing::run_ranks(2, [&](int rank, comm::Group group) {
    const auto& model = models[static_cast<std::size_t>(rank)];
    ShardedModel sharded(model, group, stage_options(model, GetParam()));
    sharded.begin_step(1);
    sharded.expect_passes(3);
    pass(sharded, 1);
    if (rank == 0) {
      pass(sharded, 1);
      pass(sharded, 1, true);
    } else {
      EXPECT_THROW(sharded.run_pass([] { throw std::runtime_error("no memory, say"); }, false),
                   std::runtime_error);
    }
    sharded.finish_step();
    // And the next step is as if nothing had been.
    sharded.begin_step(1);
    sharded.expect_passes(1);
    pass(sharded, 1);
    sharded.run_pass({}, true);
    sharded.finish_step();
    expect_sums(sharded, 2);
  });
}

bool all_hollow(const task::Model& model) {
  return std::ranges::all_of(model.parameters(), is_hollow);
}

// Forwards and backwards by turns, the first forward's backward last.
TEST(StagePasses, AtLevel3ParametersAreThereForTheWholeStepAndNoLonger) {
  std::vector<task::Model> models = {make_stage_model(), make_stage_model()};
  testing::run_ranks(2, [&](int rank, comm::Group group) {
    const auto& model = models[static_cast<std::size_t>(rank)];
    ShardedModel sharded(model, group, stage_options(model, 3));
    const auto input = torch::ones({4}, torch::kFloat64);
    for (int step = 0; step < 2; ++step) {
      EXPECT_TRUE(all_hollow(model));
      sharded.begin_step(2);
      sharded.expect_passes(2);
      const auto first = task::run_units(sharded.model(), {input}).front().sum();
      const auto second = task::run_units(sharded.model(), {input}).front().sum();
      sharded.run_pass([&] { (second * sharded.loss_factor()).backward(); }, false);
      EXPECT_FALSE(all_hollow(model));
      sharded.run_pass([&] { (first * sharded.loss_factor()).backward(); }, true);
      sharded.finish_step();
      EXPECT_TRUE(all_hollow(model));
      expect_sums(sharded, 2);
    }
  });
}

TEST(StagePasses, OfOthersAtLevels2And3AreRefused) {
  std::vector<task::Model> models = {make_stage_model(), make_stage_model()};
  for (const int level : {2, 3}) {
    testing::run_ranks(2, [&](int rank, comm::Group group) {
      auto others = stage_options(models[static_cast<std::size_t>(rank)], level);
      others.stage.reset();
      ShardedModel sharded(models[static_cast<std::size_t>(rank)], group, others);
      sharded.begin_step(1);
      EXPECT_THROW(sharded.run_pass([] {}, true), Error);
      sharded.finish_step();
    });
  }
}

}  // namespace
}  // namespace bimetal::parallel::shard

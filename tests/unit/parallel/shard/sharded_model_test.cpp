#include "bimetal/parallel/shard/sharded_model.h"

#include <gtest/gtest.h>
#include <torch/csrc/api/include/torch/types.h>
#include <torch/csrc/api/include/torch/utils.h>

#include <vector>

#include "bimetal/base/error.h"
#include "support/thread_ranks.h"
#include "unit/parallel/shard/linear_units.h"

namespace bimetal::parallel::shard {
namespace {

constexpr int kUnits = 6;

/// `seed` differs between ranks.
task::Model make_model(std::uint64_t seed) {
  return make_linear_units(kUnits, seed);
}

ShardedModelOptions options(int level) {
  return {.level = level, .weights = {3, 1}, .flat_bytes = 1, .timeout = std::chrono::seconds(20)};
}

class Sharded : public ::testing::TestWithParam<int> {};

TEST_P(Sharded, WhatStopsInTheMiddleOfAPassHangsNobody) {
  std::vector<task::Model> models = {make_model(1), make_model(1)};
  testing::run_ranks(2, [&](int rank, comm::Group group) {
    ShardedModel sharded(models[static_cast<std::size_t>(rank)], group, options(GetParam()));
    sharded.begin_step(4);
    try {
      auto loss = loss_of_linear_units(sharded.model(), 2);
      if (rank == 1) throw std::runtime_error("no memory, say");
      sharded.backward_last(loss);
    } catch (const std::runtime_error&) {
    }
    sharded.finish_step();
    // And the next step is as if nothing had been.
    sharded.begin_step(4);
    sharded.backward_last(loss_of_linear_units(sharded.model(), 2));
    sharded.finish_step();
  });
}

TEST_P(Sharded, AParameterThatNobodyUsesHasNoGradient) {
  std::vector<task::Model> models = {make_model(1), make_model(1)};
  for (auto& model : models) {
    const auto unused = torch::ones({5}, torch::kFloat64).set_requires_grad(true);
    model.units[2].parameters.push_back({"unused", unused});
  }
  testing::run_ranks(2, [&](int rank, comm::Group group) {
    ShardedModel sharded(models[static_cast<std::size_t>(rank)], group, options(GetParam()));
    sharded.begin_step(4);
    sharded.backward_last(loss_of_linear_units(sharded.model(), 2));
    sharded.finish_step();
    for (const auto& piece : sharded.pieces()) {
      EXPECT_EQ(piece.tensor.grad().defined(), piece.parameter != "unused") << piece.parameter;
    }
  });
}

TEST_P(Sharded, RanksNeedNotEvaluateEquallyOften) {
  std::vector<task::Model> models = {make_model(1), make_model(2)};
  testing::run_ranks(2, [&](int rank, comm::Group group) {
    ShardedModel sharded(models[static_cast<std::size_t>(rank)], group, options(GetParam()));
    const torch::NoGradGuard no_grad;
    for (int i = 0; i < 1 + 3 * rank; ++i) loss_of_linear_units(sharded.model(), 1);
    sharded.end_passes();
  });
}

INSTANTIATE_TEST_SUITE_P(Levels, Sharded, ::testing::Values(1, 2, 3));

// The aim of level 3: only the parameters of two units are there at once.
TEST(ShardedParameters, AreNotThereBetweenPasses) {
  std::vector<task::Model> models = {make_model(1), make_model(1)};
  testing::run_ranks(2, [&](int rank, comm::Group group) {
    const auto& model = models[static_cast<std::size_t>(rank)];
    ShardedModel sharded(model, group, options(3));
    const auto there = [&] {
      int count = 0;
      for (const auto& parameter : model.parameters()) {
        try {
          count += parameter.const_data_ptr() != nullptr ? 1 : 0;
        } catch (const c10::Error&) {  // looking at one that is not there
        }
      }
      return count;
    };
    EXPECT_EQ(there(), 0);
    sharded.begin_step(2);
    auto loss = loss_of_linear_units(sharded.model(), 1);
    EXPECT_LE(there(), 2);  // what backward begins with, and the next one ahead
    sharded.backward_last(loss);
    sharded.finish_step();
    EXPECT_EQ(there(), 0);
  });
}

}  // namespace
}  // namespace bimetal::parallel::shard

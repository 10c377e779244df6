// Updates in the middle of backward: of each flat tensor by itself, in a step's last pass alone.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/api/include/torch/types.h>
#include <torch/csrc/api/include/torch/utils.h>

#include <set>
#include <string>
#include <vector>

#include "bimetal/base/error.h"
#include "bimetal/parallel/shard/sharded_model.h"
#include "support/errors.h"
#include "support/thread_ranks.h"
#include "unit/parallel/shard/linear_units.h"

namespace bimetal::parallel::shard {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

/// The middle one has a parameter that nobody uses.
task::Model make_layers() {
  auto model = make_linear_units(3, 1);
  model.units[1].parameters.push_back(
      {"unused", torch::ones({1}, torch::kFloat64).set_requires_grad(true)});
  return model;
}

/// A rank's shards, and which of them were updated together, in turn.
struct UpdatedRank {
  explicit UpdatedRank(const task::Model& model, comm::Group group)
      : sharded(
            model, std::move(group),
            {.level = 3, .weights = {3, 1}, .flat_bytes = 1, .timeout = std::chrono::seconds(20)}) {
    sharded.update_in_backward([this] {
      std::set<std::string> names;
      for (const auto& piece : sharded.pieces()) {
        if (!piece.tensor.grad().defined()) continue;
        names.insert(piece.parameter);
        const torch::NoGradGuard no_grad;
        torch::Tensor(piece.tensor).sub_(piece.tensor.grad());
      }
      updated.push_back(names);
    });
  }

  int with_gradients() const {
    int count = 0;
    for (const auto& piece : sharded.pieces()) count += piece.tensor.grad().defined() ? 1 : 0;
    return count;
  }

  ShardedModel sharded;
  std::vector<std::set<std::string>> updated;
};

const auto each_layer =
    ElementsAre(std::set<std::string>{"layer2.weight"}, std::set<std::string>{"layer1.weight"},
                std::set<std::string>{"layer0.weight"});

TEST(UpdateInBackward, IsOfOneUnitAfterTheOther) {
  std::vector<task::Model> models = {make_layers(), make_layers()};
  testing::run_ranks(2, [&](int number, comm::Group group) {
    UpdatedRank rank(models[static_cast<std::size_t>(number)], group);
    EXPECT_TRUE(rank.sharded.updates_in_backward());
    EXPECT_TRUE(rank.sharded.updates_in_backward());
    for (int step = 0; step < 2; ++step) {
      rank.updated.clear();
      rank.sharded.begin_step(4);
      rank.sharded.expect_passes(1);
      rank.sharded.backward_last(loss_of_linear_units(rank.sharded.model(), 2));
      EXPECT_THAT(rank.updated, each_layer);
      rank.sharded.finish_step();
      EXPECT_EQ(rank.with_gradients(), 0);
      rank.sharded.after_update();
    }
  });
}

TEST(UpdateInBackward, IsOfTheLastPassOfAnyRank) {
  std::vector<task::Model> models = {make_layers(), make_layers()};
  testing::run_ranks(2, [&](int number, comm::Group group) {
    UpdatedRank rank(models[static_cast<std::size_t>(number)], group);
    rank.sharded.begin_step(6);
    if (number == 1) {
      rank.sharded.expect_passes(3);
      rank.sharded.backward(loss_of_linear_units(rank.sharded.model(), 2));
      rank.sharded.backward(loss_of_linear_units(rank.sharded.model(), 2));
      EXPECT_THAT(rank.updated, IsEmpty());
      rank.sharded.backward_last(loss_of_linear_units(rank.sharded.model(), 2));
    }
    rank.sharded.finish_step();
    EXPECT_THAT(rank.updated, each_layer) << "rank " << number;
    EXPECT_EQ(rank.with_gradients(), 0);
  });
}

TEST(UpdateInBackward, PassesThatNobodyExpectsAreFollowedByAnUpdateAsEver) {
  std::vector<task::Model> models = {make_layers(), make_layers()};
  testing::run_ranks(2, [&](int number, comm::Group group) {
    UpdatedRank rank(models[static_cast<std::size_t>(number)], group);
    rank.sharded.begin_step(4);
    if (number == 0) rank.sharded.expect_passes(1);
    rank.sharded.backward_last(loss_of_linear_units(rank.sharded.model(), 2));
    rank.sharded.finish_step();
    EXPECT_THAT(rank.updated, IsEmpty());
    EXPECT_EQ(rank.with_gradients(), 3);
  });
}

TEST(UpdateInBackward, MorePassesThanExpectedAreAnError) {
  std::vector<task::Model> models = {make_layers(), make_layers()};
  testing::run_ranks(2, [&](int number, comm::Group group) {
    UpdatedRank rank(models[static_cast<std::size_t>(number)], group);
    rank.sharded.begin_step(8);
    rank.sharded.expect_passes(1);
    rank.sharded.backward(loss_of_linear_units(rank.sharded.model(), 2));
    expect_error(ErrorCode::InvalidArgument, {},
                 [&] { loss_of_linear_units(rank.sharded.model(), 2); });
  });
}

TEST(UpdateInBackward, IsOfShardsOfParameters) {
  std::vector<task::Model> models = {make_layers(), make_layers()};
  testing::run_ranks(2, [&](int number, comm::Group group) {
    ShardedModel sharded(models[static_cast<std::size_t>(number)], group,
                         {.level = 2, .weights = {1, 1}, .timeout = std::chrono::seconds(20)});
    EXPECT_THROW(sharded.update_in_backward([] {}), Error);
  });
}

}  // namespace
}  // namespace bimetal::parallel::shard

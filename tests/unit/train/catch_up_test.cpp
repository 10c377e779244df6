// A rank is lost while the others agree on a step: a rank that has not heard so makes the same
// update, by the word of those that have.

#include <gtest/gtest.h>
#include <torch/csrc/api/include/torch/nn.h>
#include <torch/csrc/api/include/torch/optim.h>
#include <torch/csrc/api/include/torch/utils.h>

#include <chrono>
#include <memory>
#include <vector>

#include "bimetal/base/error.h"
#include "bimetal/parallel/shard/sharded_model.h"
#include "bimetal/train/collective_update.h"
#include "support/thread_ranks.h"

namespace bimetal::train {
namespace {

using parallel::shard::ShardedModel;

task::Model two_layers() {
  torch::manual_seed(1);
  task::Model model;
  for (const char* name : {"first", "second"}) {
    auto layer = std::make_shared<torch::nn::LinearImpl>(4, 4);
    layer->to(torch::kFloat64);
    model.units.push_back(task::make_unit(
        name, layer, [layer](torch::Tensor input) { return torch::tanh(layer->forward(input)); }));
  }
  return model;
}

/// One rank of a job whose gradients are clipped by what all ranks' norms come to.
class Rank {
 public:
  Rank(const task::Model& model, comm::Group group)
      : sharded_(
            model, group,
            {.level = 1, .weights = {1, 1}, .timeout = std::chrono::seconds(20), .copies = true}),
        sgd_(tensors(), torch::optim::SGDOptions(0.5).momentum(0.9)),
        update_(sharded_, std::chrono::seconds(20), {.limits = {.norm = 0.1}}),
        input_(torch::full({3, 4}, group.rank() + 1.0, torch::kFloat64)) {}

  void compute() {
    sharded_.begin_step(6);
    sharded_.backward_last(task::run_units(sharded_.model(), {input_}).front().sum(), 3);
  }
  void run(std::int64_t step) { update_.run(step, {.batch = 3}, sgd_); }
  void catch_up(std::int64_t step, const std::vector<double>& numbers) {
    update_.catch_up(step, numbers, sgd_);
  }

  ShardedModel& sharded() { return sharded_; }
  CollectiveUpdate& update() { return update_; }
  std::vector<torch::Tensor> values() const {
    std::vector<torch::Tensor> all;
    for (const auto& piece : sharded_.pieces()) all.push_back(piece.tensor.detach().clone());
    return all;
  }

 private:
  std::vector<torch::Tensor> tensors() const {
    std::vector<torch::Tensor> all;
    for (const auto& piece : sharded_.pieces()) all.push_back(piece.tensor);
    return all;
  }

  ShardedModel sharded_;
  torch::optim::SGD sgd_;
  CollectiveUpdate update_;
  torch::Tensor input_;
};

TEST(CatchUp, WhoHasNotHeardOfAnAgreementMakesTheSameUpdate) {
  const std::vector<task::Model> models = {two_layers(), two_layers()};
  const std::vector<task::Model> again = {two_layers(), two_layers()};
  std::vector<double> numbers;
  std::vector<torch::Tensor> expected;
  testing::run_ranks(2, [&](int number, comm::Group group) {
    Rank rank(models[static_cast<std::size_t>(number)], group);
    rank.compute();
    rank.run(1);
    EXPECT_EQ(rank.update().updated(), 1);
    if (number == 0) return;
    const auto told = rank.update().agreed_numbers();
    numbers.assign(told.begin(), told.end());
    expected = rank.values();
  });
  testing::run_ranks(2, [&](int number, comm::Group group) {
    Rank rank(again[static_cast<std::size_t>(number)], group);
    rank.compute();
    if (number == 0) return rank.sharded().finish_step();  // and is gone
    EXPECT_THROW(rank.run(1), Error);
    EXPECT_EQ(rank.update().updated(), 0);
    EXPECT_THROW(rank.catch_up(2, numbers), Error);  // whose gradients are not there
    rank.catch_up(1, numbers);
    EXPECT_EQ(rank.update().updated(), 1);
    const auto values = rank.values();
    ASSERT_EQ(values.size(), expected.size());
    for (std::size_t i = 0; i < values.size(); ++i) EXPECT_TRUE(values[i].equal(expected[i]));
  });
}

}  // namespace
}  // namespace bimetal::train

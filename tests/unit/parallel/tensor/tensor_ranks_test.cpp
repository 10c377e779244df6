// The results of tensor ranks together, beside one device.

#include <gtest/gtest.h>
#include <torch/csrc/api/include/torch/types.h>
#include <torch/csrc/api/include/torch/utils.h>

#include <chrono>
#include <numeric>
#include <string>
#include <vector>

#include "bimetal/base/error.h"
#include "bimetal/parallel/data/replicated_model.h"
#include "bimetal/parallel/tensor/group_ranks.h"
#include "bimetal/parallel/tensor/sequence_ranks.h"
#include "bimetal/parallel/tensor/tensor_model.h"
#include "support/errors.h"
#include "support/thread_ranks.h"

namespace bimetal::parallel::tensor {
namespace {

using testing::run_ranks;

constexpr std::chrono::seconds kTimeout{20};
const std::vector<double> kWeights = {3, 1, 2};

torch::Tensor numbers(std::int64_t rows, std::int64_t columns, std::int64_t seed) {
  return torch::arange(rows * columns, torch::kFloat64)
      .mul(seed)
      .sin()
      .mul(3)
      .view({rows, columns});
}

TEST(TensorRanks, TheLossOfPartsIsTorchsOwn) {
  const auto logits = numbers(7, 11, 2).mul(40);  // whose exponentials overflow
  const auto targets = torch::tensor({0, 10, 5, -100, 6, 3, 9}, torch::kInt64);
  auto whole = logits.clone().set_requires_grad(true);
  const auto expected = torch::cross_entropy_loss(whole, targets, {}, at::Reduction::Sum, -100);
  expected.mul(0.25).backward();
  run_ranks(3, [&](int, comm::Group group) {
    const auto ranks = GroupRanks::make(std::move(group), kWeights, kTimeout);
    const auto [first, count] = ranks->part(11);
    auto mine = logits.narrow(1, first, count).clone().set_requires_grad(true);
    const auto loss = ranks->cross_entropy_sum(mine, targets, 11, -100);
    EXPECT_NEAR(loss.item<double>(), expected.item<double>(), 1e-11);
    loss.mul(0.25).backward();
    const auto difference = mine.grad() - whole.grad().narrow(1, first, count);
    EXPECT_LE(difference.abs().max().item<double>(), 1e-13);
  });
}

TEST(TensorRanks, TheLossOfShortNumbersIsComputedInFloat32) {
  const auto logits = numbers(4, 6, 2).to(torch::kBFloat16);
  const auto targets = torch::tensor({0, 5, 2, 3}, torch::kInt64);
  const auto expected =
      torch::cross_entropy_loss(logits.to(torch::kFloat32), targets, {}, at::Reduction::Sum);
  run_ranks(2, [&](int, comm::Group group) {
    const auto ranks = GroupRanks::make(std::move(group), {1, 2}, kTimeout);
    const auto [first, count] = ranks->part(6);
    auto mine = logits.narrow(1, first, count).clone().set_requires_grad(true);
    const auto loss = ranks->cross_entropy_sum(mine, targets, 6, -100);
    EXPECT_EQ(loss.scalar_type(), torch::kFloat32);
    EXPECT_NEAR(loss.item<double>(), expected.item<double>(), 1e-5);
    loss.backward();
    EXPECT_EQ(mine.grad().scalar_type(), torch::kBFloat16);
  });
}

/// A unit with one parameter that is cut and one that stays whole.
task::Model small_model(double start) {
  auto cut = torch::full({6, 2}, start, torch::kFloat64).set_requires_grad(true);
  auto kept = torch::full({2}, start, torch::kFloat64).set_requires_grad(true);
  task::Unit unit;
  unit.name = "unit";
  unit.parameters = {{"cut", cut}, {"kept", kept}};
  unit.splits = {{"cut", 0}};
  unit.forward = [=](const task::Values& inputs) -> task::Values {
    const auto y = torch::linear(task::shared_by_tensor_ranks(inputs.front()), cut).sum(1);
    return {task::sum_over_tensor_ranks(y) + torch::mv(inputs.front(), kept)};
  };
  return {{unit}};
}

TEST(TensorSums, RanksAgreeOnWhatTheyKeepWholeAndCountItOnce) {
  run_ranks(2, [&](int rank, comm::Group group) {
    const auto model = small_model(rank + 1);
    const auto together = std::make_shared<const TensorModel>(
        model, GroupRanks::make(group, {2, 1}, kTimeout), Cuts(model, {2, 1}));
    const auto parameters = together->model().parameters();
    EXPECT_EQ(parameters[0].sizes().vec(), (std::vector<std::int64_t>{rank == 0 ? 4 : 2, 2}));
    EXPECT_EQ(parameters[0].max().item<double>(), 1) << "not rank 0's";
    comm::Group alone;
    for (int one = 0; one < 2; ++one) {
      if (auto mine = group.subgroup({one})) alone = mine;
    }
    const auto store = std::make_shared<ReplicatedModel>(together->model(), alone);
    Sync sync(store, {std::make_shared<TensorSums>(store, together)});
    sync.begin_step(1);
    const auto x = torch::ones({1, 2}, torch::kFloat64);
    const auto y = task::run_units(together->model(), {x}).front();
    EXPECT_EQ(y.item<double>(), 6 * 2 + 2);
    store->backward_last(y.sum());
    sync.sum_gradients();
    EXPECT_TRUE(sync.counts(parameters[0]));
    EXPECT_EQ(sync.counts(parameters[1]), rank == 0);
    const auto one = sync.as_one({.batch = 5,
                                  .loss_sum = 2,
                                  .wishes = {.stop = rank == 1},
                                  .gradient_norm = rank == 0 ? 3.0 : 4.0});
    EXPECT_EQ(one.batch, 5);
    EXPECT_EQ(one.loss_sum, 2);
    EXPECT_EQ(one.gradient_norm, 5);
    EXPECT_TRUE(one.wishes.stop);
    {
      const torch::NoGradGuard no_grad;
      auto kept = parameters[1];
      kept.add_(rank + 1);  // as devices that round differently would
    }
    sync.spread_update();
    EXPECT_EQ(parameters[1][0].item<double>(), 2);
  });
}

// A rank that ran out of memory comes to none of the sums that the others wait in.
TEST(TensorRanks, WhoGivesUpLetsTheOthersGoAndAllGoOn) {
  run_ranks(3, [&](int rank, comm::Group group) {
    const auto ranks = GroupRanks::make(std::move(group), {1, 1, 1}, kTimeout);
    auto one = torch::ones({1}, torch::kFloat64);
    if (rank == 1) {
      ranks->all_reduce(one, comm::ReduceOp::sum);
      ranks->give_up("no memory left");
    } else {
      try {
        ranks->all_reduce(one, comm::ReduceOp::sum);  // may still go on here when that comes
        ranks->all_reduce(one, comm::ReduceOp::sum);
        FAIL();
      } catch (const Error& error) {
        EXPECT_EQ(error.code(), ErrorCode::Aborted);
        EXPECT_NE(std::string(error.what()).find("no memory left"), std::string::npos);
      }
    }
    ranks->renew();
    auto again = torch::ones({1}, torch::kFloat64);
    ranks->all_reduce(again, comm::ReduceOp::sum);
    EXPECT_EQ(again.item<double>(), 3);
  });
}

// The results of tensor ranks that have sequences in parts, beside one device.
using Counts = std::vector<std::int64_t>;

constexpr std::chrono::seconds kPatience{20};
const std::vector<double> kUneven = {3, 1, 2};

torch::Tensor waves(std::vector<std::int64_t> sizes, double step) {
  const auto count =
      std::accumulate(sizes.begin(), sizes.end(), std::int64_t{1}, std::multiplies<>());
  return torch::arange(count, torch::kFloat64).mul(step).sin().mul(3).view(sizes);
}

double most(const torch::Tensor& difference) {
  return difference.numel() == 0 ? 0 : difference.abs().max().item<double>();
}

std::shared_ptr<const SequenceRanks> ranks_for(comm::Group group, std::int64_t length,
                                               std::vector<double> weights) {
  return std::make_shared<SequenceRanks>(
      GroupRanks::make(std::move(group), std::move(weights), kPatience), length);
}

TEST(PositionsByRank, GoByWeightAndComeToTheWhole) {
  EXPECT_EQ(positions_by_rank(12, kUneven), (Counts{6, 2, 4}));
  EXPECT_EQ(positions_by_rank(7, std::vector<double>{1, 1}), (Counts{4, 3}));
  EXPECT_EQ(positions_by_rank(3, kUneven), (Counts{1, 1, 1}));
}

TEST(PositionsByRank, OfAShortSequenceSomeRanksHaveNone) {
  EXPECT_EQ(positions_by_rank(2, kUneven), (Counts{1, 1, 0}));
  EXPECT_EQ(positions_by_rank(1, kUneven), (Counts{1, 0, 0}));
}

// A block's backbone: a normalisation of the positions here, a matrix cut by columns, one by rows.
void expect_backbone(std::int64_t samples, std::int64_t length) {
  const auto x = waves({samples, length, 4}, 2), scale = waves({4}, 0.3);
  const auto up = waves({4, 12}, 3), down = waves({12, 4}, 5);
  auto whole = x.clone().set_requires_grad(true), s = scale.clone().set_requires_grad(true);
  const auto inner = torch::tanh(torch::matmul(whole * s, up));
  const auto expected = whole + torch::matmul(inner, down);
  expected.square().sum().backward();
  testing::run_ranks(3, [&](int, comm::Group group) {
    const auto ranks = ranks_for(std::move(group), length, kUneven);
    const auto [first, count] = ranks->positions().value();
    const auto [column, columns] = ranks->part(12);
    auto mine = x.narrow(1, first, count).clone().set_requires_grad(true);
    auto mine_s = scale.clone().set_requires_grad(true);
    const auto h = ranks->shared(mine * mine_s);
    ASSERT_EQ(h.size(1), length);
    const auto z = torch::tanh(torch::matmul(h, up.narrow(1, column, columns)));
    const auto y = mine + ranks->sum(torch::matmul(z, down.narrow(0, column, columns)));
    EXPECT_LE(most(y - expected.narrow(1, first, count)), 1e-12);
    y.square().sum().backward();
    EXPECT_LE(most(mine.grad() - whole.grad().narrow(1, first, count)), 1e-10);
  });
}

TEST(SequenceRanks, RanksWithoutPositionsComputeWithTheOthers) {
  expect_backbone(3, 2);
}

TEST(SequenceRanks, ShortNumbersTravelAsTheyAre) {
  testing::run_ranks(2, [&](int rank, comm::Group group) {
    const auto ranks = ranks_for(std::move(group), 4, {3, 1});
    const auto [first, count] = ranks->positions().value();
    EXPECT_EQ(count, rank == 0 ? 3 : 1);
    const auto whole = torch::arange(8, torch::kBFloat16).view({2, 4, 1});
    EXPECT_TRUE(ranks->gathered(whole.narrow(1, first, count)).equal(whole));
    EXPECT_TRUE(ranks->sum_here(whole).equal(whole.narrow(1, first, count) * 2));
  });
}

TEST(SequenceRanks, UnitsThatKeepSequencesElsewhereAreRefused) {
  testing::run_ranks(2, [&](int, comm::Group group) {
    const auto ranks = ranks_for(std::move(group), 4, {1, 1});
    expect_error(ErrorCode::InvalidArgument, {}, [&] { ranks->sum(torch::ones({4, 2, 1})); });
  });
}

TEST(SequenceLength, TravelsBehindTheValues) {
  task::Values tokens = {torch::zeros({3, 7}, torch::kInt64)};
  EXPECT_EQ(take_length(tokens), 7);
  EXPECT_EQ(tokens.size(), 1U);
  auto handed_on = with_length({torch::ones({3, 2, 5})}, 7);
  EXPECT_EQ(take_length(handed_on), 7);
  EXPECT_EQ(handed_on.size(), 1U);
}

}  // namespace
}  // namespace bimetal::parallel::tensor

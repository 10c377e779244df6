// What tensor ranks compute that have sequences in parts, beside one device.

#include "bimetal/parallel/tensor/sequence_ranks.h"

#include <gtest/gtest.h>
#include <torch/csrc/api/include/torch/types.h>

#include <chrono>
#include <numeric>
#include <vector>

#include "bimetal/base/error.h"
#include "bimetal/parallel/data/replicated_model.h"
#include "bimetal/parallel/tensor/tensor_store.h"
#include "support/errors.h"
#include "support/thread_ranks.h"

namespace bimetal::parallel::tensor {
namespace {

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

TEST(SequenceRanks, TwoMatricesGiveTheirPositionsOfWhatTheyGiveWhole) {
  expect_backbone(2, 11);
  expect_backbone(1, 6);
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

/// A unit whose only parameter every rank has whole.
task::Model scaled_model() {
  auto cut = torch::ones({2, 2}, torch::kFloat64).set_requires_grad(true);
  auto scale = torch::ones({2}, torch::kFloat64).set_requires_grad(true);
  task::Unit unit;
  unit.name = "unit";
  unit.parameters = {{"cut", cut}, {"scale", scale}};
  unit.splits = {{"cut", 0}};
  unit.forward = [=](const task::Values& inputs) -> task::Values {
    const auto& ids = inputs.front();
    const auto here = task::positions_here().value_or(task::Part{0, ids.size(1)});
    const auto x = ids.narrow(1, here.first, here.count).to(torch::kFloat64).unsqueeze(-1) * scale;
    return {task::shared_by_tensor_ranks(x)};
  };
  return {{unit}};
}

// Each rank has the gradients of its own positions of what it keeps whole.
TEST(TensorStore, GradientsOfWhatIsKeptWholeAreSummedOverSequences) {
  testing::run_ranks(2, [&](int, comm::Group group) {
    const auto model = scaled_model();
    const auto together = std::make_shared<const TensorModel>(
        model, GroupRanks::make(group, {1, 1}, kPatience), Cuts(model, {1, 1}), Between::parts);
    comm::Group alone;
    for (int one = 0; one < 2; ++one) {
      if (auto mine = group.subgroup({one})) alone = mine;
    }
    TensorStore store(std::make_shared<ReplicatedModel>(together->model(), alone), together);
    store.begin_step(1);
    const auto ids = torch::tensor({{1, 2, 4}}, torch::kInt64);
    const auto outputs = task::run_units(together->model(), {ids});
    EXPECT_EQ(outputs.front().size(1), 3);
    EXPECT_EQ(outputs.back().size(0), 3) << "how long sequences are";
    // As of logits in parts: each rank's loss is of its own half of what all share.
    store.backward_last(outputs.front().sum() / 2);
    store.finish_step();
    const auto gradient = model.units[0].parameters[1].tensor.grad();
    EXPECT_TRUE(gradient.equal(torch::full({2}, 7, torch::kFloat64))) << gradient;
  });
}

}  // namespace
}  // namespace bimetal::parallel::tensor

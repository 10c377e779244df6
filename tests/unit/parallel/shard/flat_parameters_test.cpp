#include "bimetal/parallel/shard/flat_parameters.h"

#include <gtest/gtest.h>
#include <torch/csrc/api/include/torch/autograd.h>
#include <torch/csrc/api/include/torch/types.h>

#include <filesystem>

#include "bimetal/parallel/shard/kept_memory.h"
#include "support/temporary_folder.h"

namespace bimetal::parallel::shard {
namespace {

class Flat : public ::testing::Test {
 protected:
  torch::Tensor a_ = torch::arange(6, torch::kFloat64).view({2, 3}).set_requires_grad(true);
  torch::Tensor b_ = torch::arange(6, 10, torch::kFloat64).set_requires_grad(true);
  FlatPlan plan_ = plan_flats(std::vector<ParameterPlace>{{torch::kFloat64, 6, 0, false},
                                                          {torch::kFloat64, 4, 0, false}},
                              std::vector<double>{1, 4}, 0)
                       .front();
};

TEST_F(Flat, ParametersStayLeavesAndKeepTheirValues) {
  const FlatParameters flat(plan_, {a_, b_}, 0);
  EXPECT_TRUE(a_.is_leaf());
  EXPECT_TRUE(a_.equal(torch::arange(6, torch::kFloat64).view({2, 3})));
  EXPECT_TRUE(flat.whole().equal(torch::arange(10, torch::kFloat64)));
  flat.whole().zero_();
  EXPECT_EQ(b_.sum().item<double>(), 0);
}

TEST_F(Flat, MemoryGoesAndComesBackBelowWhatAutogradHasSaved) {
  FlatParameters flat(plan_, {a_, b_}, 1);
  const auto input = torch::ones({3}, torch::kFloat64).set_requires_grad(true);
  const auto loss = a_.mv(input).sum();
  flat.drop_memory();
  EXPECT_THROW(a_.const_data_ptr(), c10::Error);  // and not the end of the process
  flat.take_memory();
  flat.whole().copy_(torch::arange(10, torch::kFloat64));
  loss.backward();
  EXPECT_TRUE(input.grad().equal(torch::tensor({3., 5., 7.}, torch::kFloat64)));
}

TEST_F(Flat, WhatARankKeepsOutlivesTheWhole) {
  const test::TemporaryFolder folder;
  for (const auto kept : {Kept::OnDevice, Kept::OnHost, Kept::OnDisk}) {
    std::vector<FlatParameters> flats;
    flats.emplace_back(plan_, std::vector{a_, b_}, 1);
    keep_apart(flats, kept, folder.path());
    auto& flat = flats.front();
    flat.whole().zero_();
    flat.drop_memory();
    EXPECT_FALSE(flat.held());
    EXPECT_TRUE(flat.own().equal(torch::arange(2, 10, torch::kFloat64)));
    torch::Tensor(flat.own()).add_(1);
    flat.let_go_of_own();
    flat.bring_own();
    EXPECT_TRUE(flat.own().equal(torch::arange(3, 11, torch::kFloat64)));
    flat.take_memory();
    flat.whole().copy_(torch::arange(10, torch::kFloat64));
  }
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
}

// An optimizer's piece is a view of what is kept, wherever that is.
TEST_F(Flat, WhatARankKeepsMayBeAPartOfTheWholeMeanwhile) {
  FlatParameters flat(plan_, {a_, b_}, 1);
  flat.set_apart();
  const auto piece = flat.own().narrow(0, 1, 3);
  flat.keep_in_whole();
  flat.whole().add_(10);
  EXPECT_EQ(piece.data_ptr(), flat.whole().narrow(0, 3, 3).data_ptr());
  EXPECT_TRUE(piece.equal(torch::tensor({13., 14., 15.}, torch::kFloat64)));
  flat.drop_memory();
  EXPECT_TRUE(flat.own().equal(torch::arange(12, 20, torch::kFloat64)));
  flat.keep_in_whole();  // there is none
  EXPECT_TRUE(piece.equal(torch::tensor({13., 14., 15.}, torch::kFloat64)));
}

// Gathered in half, kept in float32: what autograd accumulates gradients with outlives a pass in
// which they are wide.
TEST(HalvedFlat, IsWideForPassesWithoutABackward) {
  const auto third = torch::full({3}, 1.0F / 3).set_requires_grad(true);
  const std::vector<ParameterPlace> places = {{.count = 3, .gathered = torch::kBFloat16}};
  const auto plan = plan_flats(places, std::vector<double>{1}, 0).front();
  FlatParameters flat(plan, {third}, 0);
  EXPECT_TRUE(third.is_leaf());
  EXPECT_EQ(third.scalar_type(), torch::kBFloat16);
  EXPECT_TRUE(flat.own().equal(torch::full({3}, 1.0F / 3)));
  EXPECT_TRUE(flat.whole().equal(flat.own().to(torch::kBFloat16)));
  const auto accumulator = torch::autograd::impl::grad_accumulator(third);

  flat.drop_memory();
  flat.set_wide(true);
  flat.take_memory();
  EXPECT_EQ(third.scalar_type(), torch::kFloat32);
  torch::Tensor(flat.whole()).copy_(flat.own());
  EXPECT_TRUE(third.equal(flat.own()));
  flat.set_wide(false);  // not while there is memory
  EXPECT_EQ(third.scalar_type(), torch::kFloat32);

  flat.drop_memory();
  flat.set_wide(false);
  flat.take_memory();
  torch::Tensor(flat.whole()).copy_(flat.own());
  EXPECT_EQ(third.scalar_type(), torch::kBFloat16);
  EXPECT_TRUE(third.requires_grad());
  EXPECT_EQ(torch::autograd::impl::grad_accumulator(third), accumulator);
  (third * third).sum().backward();
  EXPECT_EQ(third.grad().scalar_type(), torch::kBFloat16);
}

// Whole in half from step to step: what is kept lies apart, and passes may be shown something else.
TEST(HalvedFlat, LiesInTheMemoryGivenAndCanBeShownInFull) {
  const auto a = torch::full({2, 2}, 1.0F / 3).t().set_requires_grad(true);
  const auto b = torch::full({3}, 1.0F / 7).set_requires_grad(true);
  const std::vector<ParameterPlace> places = {{.count = 4, .gathered = torch::kBFloat16},
                                              {.count = 3, .gathered = torch::kBFloat16}};
  const auto plan = plan_flats(places, std::vector<double>{3, 4}, 0).front();
  const auto memory = torch::zeros({7}, torch::kBFloat16);
  FlatParameters flat(plan, {a, b}, 1, /*hollow=*/false, memory);
  EXPECT_EQ(flat.whole().data_ptr(), memory.data_ptr());
  EXPECT_TRUE(
      flat.own().equal(torch::cat({torch::full({1}, 1.0F / 3), torch::full({3}, 1.0F / 7)})));
  EXPECT_TRUE(flat.own_in_whole().equal(flat.own().to(torch::kBFloat16)));
  EXPECT_TRUE(flat.is_copied_to_bfloat16());
  flat.take_own_from_whole();  // of another type
  EXPECT_EQ(flat.own()[3].item<float>(), 1.0F / 7);

  const auto exact = torch::arange(7, torch::kFloat32);
  flat.show(exact);
  EXPECT_TRUE(b.equal(torch::tensor({4.0F, 5.0F, 6.0F})));
  flat.show(flat.whole());
  EXPECT_EQ(b.scalar_type(), torch::kBFloat16);
  EXPECT_TRUE(b.requires_grad() && b.is_leaf());
}

}  // namespace
}  // namespace bimetal::parallel::shard

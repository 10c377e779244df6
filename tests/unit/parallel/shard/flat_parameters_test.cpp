#include "bimetal/parallel/shard/flat_parameters.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

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
  const FlatParameters flat(plan_, {a_, b_}, 0, false);
  EXPECT_TRUE(a_.is_leaf());
  EXPECT_TRUE(a_.equal(torch::arange(6, torch::kFloat64).view({2, 3})));
  EXPECT_TRUE(flat.whole().equal(torch::arange(10, torch::kFloat64)));
  flat.whole().zero_();
  EXPECT_EQ(b_.sum().item<double>(), 0);
}

TEST_F(Flat, MemoryGoesAndComesBackBelowWhatAutogradHasSaved) {
  FlatParameters flat(plan_, {a_, b_}, 1, true);
  const auto input = torch::ones({3}, torch::kFloat64).set_requires_grad(true);
  const auto loss = a_.mv(input).sum();
  flat.drop_memory();
  EXPECT_FALSE(a_.unsafeGetTensorImpl()->storage_initialized());
  flat.take_memory();
  flat.whole().copy_(torch::arange(10, torch::kFloat64));
  loss.backward();
  EXPECT_TRUE(input.grad().equal(torch::tensor({3., 5., 7.}, torch::kFloat64)));
}

TEST_F(Flat, WhatARankKeepsOutlivesTheWhole) {
  FlatParameters flat(plan_, {a_, b_}, 1, true);
  flat.drop_memory();
  EXPECT_FALSE(flat.held());
  EXPECT_TRUE(flat.own().equal(torch::arange(2, 10, torch::kFloat64)));
}

}  // namespace
}  // namespace bimetal::parallel::shard

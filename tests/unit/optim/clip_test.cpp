#include "bimetal/optim/clip.h"

#include <gtest/gtest.h>
#include <torch/csrc/api/include/torch/nn/utils.h>
#include <torch/csrc/api/include/torch/optim.h>
#include <torch/csrc/api/include/torch/types.h>
#include <torch/csrc/api/include/torch/utils.h>

#include <cmath>
#include <limits>

namespace bimetal::optim {
namespace {

using Tensors = std::vector<torch::Tensor>;

Tensors parameters_with_gradients(torch::ScalarType dtype) {
  torch::manual_seed(4);
  Tensors parameters = {torch::randn({5, 3}, dtype), torch::randn({7}, dtype),
                        torch::randn({2, 2, 2}, dtype)};
  for (auto& parameter : parameters) {
    parameter.requires_grad_();
    parameter.mutable_grad() = torch::randn_like(parameter) * 3;
  }
  return parameters;
}

Tensors gradients(const Tensors& parameters) {
  Tensors all;
  for (const auto& parameter : parameters) all.push_back(parameter.grad());
  return all;
}

double largest_difference(const Tensors& a, const Tensors& b) {
  double largest = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    largest = std::max(largest, (a[i] - b[i]).abs().max().item<double>());
  }
  return largest;
}

TEST(Clip, ByNormIsTorchs) {
  for (const double limit : {0.5, 5.0, 1000.0}) {
    const auto ours = parameters_with_gradients(torch::kFloat64);
    const auto theirs = parameters_with_gradients(torch::kFloat64);
    const auto norm = torch::nn::utils::clip_grad_norm_(theirs, limit);
    EXPECT_NEAR(norm_of_gradients(gradients(ours)), norm, 1e-13);
    clip(gradients(ours), {.norm = limit});
    EXPECT_LE(largest_difference(gradients(ours), gradients(theirs)), 1e-15) << limit;
    EXPECT_NEAR(norm_of_gradients(gradients(ours)), std::min(limit, norm), 1e-5);
  }
}

TEST(Clip, ByValueIsTorchs) {
  const auto ours = parameters_with_gradients(torch::kFloat32);
  const auto theirs = parameters_with_gradients(torch::kFloat32);
  torch::nn::utils::clip_grad_value_(theirs, 0.75);
  clip(gradients(ours), {.value = 0.75});
  EXPECT_EQ(largest_difference(gradients(ours), gradients(theirs)), 0);
  EXPECT_FLOAT_EQ(gradients(ours)[0].abs().max().item<float>(), 0.75f);
}

TEST(Clip, WhatIsNotFiniteShowsInTheNorm) {
  auto parameters = parameters_with_gradients(torch::kFloat32);
  for (const double bad :
       {std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::infinity()}) {
    gradients(parameters)[1][3] = bad;
    EXPECT_FALSE(std::isfinite(norm_of_gradients(gradients(parameters))));
  }
  EXPECT_EQ(norm_of_gradients({}), 0);
}

TEST(Clip, ParametersOfSeveralTypesAreOneVector) {
  const Tensors mixed = {torch::full({4}, 3.0, torch::kFloat64), torch::full({4}, 4.0)};
  EXPECT_NEAR(norm_of_gradients(mixed), 10, 1e-6);
}

TEST(Clip, TakesTheGradientsThatThereAre) {
  auto parameters = parameters_with_gradients(torch::kFloat32);
  parameters[1].mutable_grad() = torch::Tensor();
  const torch::optim::SGD optimizer(parameters, torch::optim::SGDOptions(0.1));
  const auto found = gradients_of(optimizer);
  ASSERT_EQ(found.size(), 2u);
  EXPECT_TRUE(found[1].is_same(parameters[2].grad()));
}

}  // namespace
}  // namespace bimetal::optim

// Adam on the CPU: libtorch's numbers and states, wherever the moments are kept.
#include "bimetal/optim/cpu_adam.h"

#include <gtest/gtest.h>
#include <torch/csrc/api/include/torch/optim.h>
#include <torch/csrc/api/include/torch/types.h>
#include <torch/csrc/api/include/torch/utils.h>

#include <cmath>
#include <filesystem>

#include "bimetal/base/error.h"
#include "bimetal/optim/fused.h"
#include "bimetal/optim/optimizers.h"
#include "support/temporary_folder.h"
#include "unit/optim/optimizers_alike.h"

namespace bimetal::optim {
namespace {

using torch::optim::AdamOptions;
using torch::optim::AdamWOptions;

TEST(CpuAdam, IsLibtorchs) {
  expect_alike<CpuAdam, torch::optim::Adam>(AdamOptions(0.01).weight_decay(0.1));
  expect_alike<CpuAdam, FusedAdam>(AdamOptions(0.01).betas({0.8, 0.95}).eps(1e-3));
}

TEST(CpuAdam, WithDecoupledDecayIsLibtorchs) {
  expect_alike<CpuAdamW, torch::optim::AdamW>(AdamWOptions(0.01).weight_decay(0.1));
  expect_alike<CpuAdamW, FusedAdamW>(AdamWOptions(0.01).betas({0.8, 0.95}).eps(1e-3));
  expect_alike<CpuAdamW, torch::optim::AdamW>(AdamWOptions(0.01), 0.25);
}

/// Every length of loop, its vectors and its rest, by one thread and by several.
TEST(CpuAdam, AnyNumberOfElementsIsStepped) {
  for (const std::int64_t count : {0, 1, 7, 8, 15, 33, 100, 1000, 100'003}) {
    for (const auto type : {torch::kFloat32, torch::kFloat64}) {
      torch::manual_seed(3);
      const auto values = torch::randn({count}, type), gradient = torch::randn({count}, type);
      auto ours = values.clone(), theirs = values.clone();
      CpuAdamW optimizer({ours}, AdamWOptions(0.1));
      torch::optim::AdamW expected({theirs}, AdamWOptions(0.1));
      ours.mutable_grad() = gradient;
      theirs.mutable_grad() = gradient.clone();
      optimizer.step();
      expected.step();
      EXPECT_TRUE(torch::allclose(ours, theirs, 1e-6, 1e-6)) << count;
    }
  }
}

TEST(CpuAdam, CopiesToBfloat16AsTorchRounds) {
  torch::manual_seed(5);
  const auto start = torch::cat({torch::randn({1001}) * 1e3, torch::randn({1000}) * 1e-40,
                                 torch::tensor({-0.0f, std::nanf(""), 3.4e38f})});
  const auto none = torch::zeros_like(start);
  const AdamTensors tensors{start.clone(), none, none.clone(), none.clone(),
                            torch::empty_like(start, torch::kBFloat16)};
  adam_update(tensors, {.weight_decay = 0});
  const auto expected = tensors.parameter.to(torch::kBFloat16);
  const auto is_number = ~expected.isnan();
  EXPECT_TRUE(tensors.bfloat16.isnan().equal(expected.isnan()));
  EXPECT_TRUE(tensors.bfloat16.index({is_number}).equal(expected.index({is_number})));
  EXPECT_EQ(tensors.parameter.isnan().sum().item<int>(), 1);
}

/// If it is asked for, for parameters with a gradient, wherever the moments are.
TEST(CpuAdam, StepsWriteBfloat16InTheirPass) {
  const test::TemporaryFolder folder;
  for (const bool on_disk : {false, true}) {
    torch::manual_seed(7);
    const Tensors parameters = {torch::randn({70'001}), torch::randn({5, 3}), torch::randn({4})};
    const Tensors copies = {torch::zeros({70'001}, torch::kBFloat16),
                            torch::zeros({5, 3}, torch::kBFloat16),
                            torch::zeros({4}, torch::kBFloat16)};
    CpuAdamW optimizer(parameters, AdamWOptions(0.1));
    if (on_disk) optimizer.keep_on_disk(folder.path());
    optimizer.set_bfloat16([&](const torch::Tensor& parameter) {
      if (parameter.is_same(parameters[1])) return torch::Tensor();
      return parameter.is_same(parameters[0]) ? copies[0] : copies[2];
    });
    for (const std::size_t with : {0, 1}) {
      torch::Tensor(parameters[with]).mutable_grad() = torch::randn_like(parameters[with]);
    }
    optimizer.step();
    EXPECT_TRUE(copies[0].equal(parameters[0].to(torch::kBFloat16)));
    EXPECT_EQ(copies[1].count_nonzero().item<int>(), 0);
    EXPECT_EQ(copies[2].count_nonzero().item<int>(), 0);
  }
}

TEST(CpuAdam, WhatCannotBeSteppedIsRefusedUnchanged) {
  auto half = torch::ones({4}, torch::kFloat16);
  half.mutable_grad() = torch::ones_like(half);
  EXPECT_THROW(CpuAdamW({half}, AdamWOptions(0.1)).step(), Error);
  auto turned = torch::ones({4, 2}).t();
  turned.mutable_grad() = torch::ones_like(turned);
  EXPECT_THROW(CpuAdamW({turned}, AdamWOptions(0.1)).step(), Error);
  auto one = torch::ones({4});
  one.mutable_grad() = torch::ones_like(one);
  EXPECT_THROW(CpuAdamW({one}, AdamWOptions(0.1).amsgrad(true)).step(), Error);
  EXPECT_TRUE(one.equal(torch::ones({4})));
}

/// Some as large as several chunks, some as small as many of one.
Tensors shapes_of_all_sizes() {
  torch::manual_seed(6);
  Tensors parameters;
  for (const std::int64_t count : {3, 3'000'001, 0, 1, 1024, 4096, 700'000, 5, 1'048'576, 2}) {
    parameters.push_back(torch::randn({count}));
  }
  return parameters;
}

void step_with_some_gradients(torch::optim::Optimizer& optimizer, const Tensors& parameters,
                              int number) {
  torch::manual_seed(static_cast<std::uint64_t>(number) + 10);
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    auto parameter = parameters[i];
    const auto gradient = torch::randn_like(parameter);
    parameter.mutable_grad() = i % 4 == 3 && number == 0 ? torch::Tensor() : gradient;
  }
  optimizer.step();
}

checkpoint::TensorMap states_of(torch::optim::Optimizer& optimizer, const Tensors& parameters) {
  task::ModelState model;
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    model.parameters.push_back({std::to_string(i), parameters[i]});
  }
  return checkpoint::optimizer_tensors(optimizer, model);
}

TEST(CpuAdam, OnADiskIsWhatItIsInMemory) {
  const test::TemporaryFolder folder;
  const auto a = shapes_of_all_sizes(), b = shapes_of_all_sizes();
  CpuAdamW in_memory(a, AdamWOptions(0.01).weight_decay(0.1));
  CpuAdamW on_disk(b, AdamWOptions(0.01).weight_decay(0.1));
  on_disk.keep_on_disk(folder.path());
  for (int number = 0; number < 3; ++number) {
    step_with_some_gradients(in_memory, a, number);
    step_with_some_gradients(on_disk, b, number);
    const auto expected = states_of(in_memory, a), states = states_of(on_disk, b);
    ASSERT_EQ(states.size(), expected.size());
    for (const auto& [name, tensor] : expected) EXPECT_TRUE(states.at(name).equal(tensor)) << name;
    for (std::size_t i = 0; i < a.size(); ++i) EXPECT_TRUE(a[i].equal(b[i])) << i;
  }
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
}

}  // namespace
}  // namespace bimetal::optim

#pragma once
// A model of a few parameters and buffers, and steps on made-up data, for tests of files.

#include <gtest/gtest.h>
#include <torch/csrc/api/include/torch/nn.h>
#include <torch/csrc/api/include/torch/optim.h>

#include "bimetal/checkpoint/model_file.h"

namespace bimetal::checkpoint {

struct SmallNet : torch::nn::Module {
  explicit SmallNet(std::int64_t hidden = 4) {
    conv = register_module("conv", torch::nn::Conv2d(1, hidden, 3));
    norm = register_module("norm", torch::nn::BatchNorm2d(hidden));
    head = register_module("head", torch::nn::Linear(hidden, 2));
  }
  torch::Tensor forward(torch::Tensor x) {
    return head->forward(torch::relu(norm->forward(conv->forward(x))).mean({2, 3}));
  }
  torch::nn::Conv2d conv{nullptr};
  torch::nn::BatchNorm2d norm{nullptr};
  torch::nn::Linear head{nullptr};
};

/// Steps on data that depend on the number of the step alone.
inline void run_steps(SmallNet& net, torch::optim::Optimizer& optimizer, int first, int last) {
  for (int step = first; step <= last; ++step) {
    auto generator = at::detail::createCPUGenerator(static_cast<std::uint64_t>(step));
    const auto x = torch::randn({8, 1, 6, 6}, generator);
    optimizer.zero_grad();
    net.forward(x).square().mean().backward();
    optimizer.step();
  }
}

inline TensorMap copy_of(const torch::nn::Module& module) {
  TensorMap copies;
  for (const auto& [name, tensor] : model_tensors(module)) copies[name] = tensor.detach().clone();
  return copies;
}

inline void expect_equal(const TensorMap& a, const TensorMap& b) {
  ASSERT_EQ(a.size(), b.size());
  for (const auto& [name, tensor] : a) {
    ASSERT_TRUE(b.contains(name)) << name;
    EXPECT_TRUE(torch::equal(tensor, b.at(name))) << name;
  }
}

}  // namespace bimetal::checkpoint

// The fused updates are libtorch's own, and so are their states.
#include "bimetal/optim/fused.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "bimetal/checkpoint/optimizer_state.h"
#include "bimetal/optim/part_of_step.h"
#include "bimetal/task/model_state.h"

namespace bimetal::optim {
namespace {

using Tensors = std::vector<torch::Tensor>;

Tensors start(torch::ScalarType dtype) {
  torch::manual_seed(5);
  return {torch::randn({6, 5}, dtype), torch::randn({7}, dtype), torch::randn({3, 2, 2}, dtype)};
}

/// Steps with gradients that the step's number gives; the second parameter has none in the first.
void train(torch::optim::Optimizer& optimizer, const Tensors& parameters, double part = 1) {
  for (int step = 0; step < 12; ++step) {
    torch::manual_seed(static_cast<std::uint64_t>(step) + 50);
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      auto parameter = parameters[i];
      const auto gradient = torch::randn_like(parameter);
      parameter.mutable_grad() = i == 1 && step == 0 ? torch::Tensor() : gradient;
    }
    step_by_part(optimizer, 1.0, part);
  }
}

template <typename Ours, typename Theirs, typename Options>
void expect_alike(const Options& options, double part = 1) {
  for (const auto dtype : {torch::kFloat64, torch::kFloat32}) {
    const auto a = start(dtype), b = start(dtype);
    Ours ours(a, options);
    Theirs theirs(b, options);
    train(ours, a, part);
    train(theirs, b, part);
    const double tolerance = dtype == torch::kFloat64 ? 1e-14 : 2e-6;
    task::ModelState model_a, model_b;
    for (std::size_t i = 0; i < a.size(); ++i) {
      EXPECT_LE((a[i] - b[i]).abs().max().template item<double>(), tolerance) << i;
      model_a.parameters.push_back({std::to_string(i), a[i]});
      model_b.parameters.push_back({std::to_string(i), b[i]});
    }
    EXPECT_EQ(checkpoint::optimizer_kind(ours), checkpoint::optimizer_kind(theirs));
    const auto state = checkpoint::optimizer_tensors(ours, model_a);
    const auto expected = checkpoint::optimizer_tensors(theirs, model_b);
    ASSERT_EQ(state.size(), expected.size());
    for (const auto& [name, tensor] : expected) {
      const auto difference = (state.at(name) - tensor).abs().max().template item<double>();
      EXPECT_LE(difference, tolerance) << name;
    }
  }
}

TEST(Fused, AdamIsLibtorchs) {
  expect_alike<FusedAdam, torch::optim::Adam>(torch::optim::AdamOptions(0.01).weight_decay(0.1));
}

TEST(Fused, AdamWIsLibtorchs) {
  expect_alike<FusedAdamW, torch::optim::AdamW>(torch::optim::AdamWOptions(0.01).weight_decay(0.1));
}

TEST(Fused, AmsgradGoesItsOwnWay) {
  expect_alike<FusedAdamW, torch::optim::AdamW>(torch::optim::AdamWOptions(0.01).amsgrad(true));
}

TEST(Fused, SgdIsLibtorchs) {
  expect_alike<FusedSgd, torch::optim::SGD>(torch::optim::SGDOptions(0.1).weight_decay(0.01));
  expect_alike<FusedSgd, torch::optim::SGD>(
      torch::optim::SGDOptions(0.1).momentum(0.9).weight_decay(0.01));
  expect_alike<FusedSgd, torch::optim::SGD>(
      torch::optim::SGDOptions(0.1).momentum(0.9).nesterov(true));
}

TEST(Fused, PartsOfStepsAreLibtorchs) {
  expect_alike<FusedSgd, torch::optim::SGD>(torch::optim::SGDOptions(0.1).momentum(0.9), 0.25);
  expect_alike<FusedAdam, torch::optim::Adam>(torch::optim::AdamOptions(0.01), 0.25);
}

// A gradient may lie in memory in another order than its parameter.
TEST(Fused, TensorsOfOtherLayoutsGoLibtorchsWay) {
  const auto make = [] { return Tensors{torch::arange(12.0).view({3, 4}).t()}; };
  const auto a = make(), b = make();
  FusedSgd ours(a, torch::optim::SGDOptions(0.5));
  torch::optim::SGD theirs(b, torch::optim::SGDOptions(0.5));
  for (auto parameter : {a[0], b[0]}) parameter.mutable_grad() = torch::arange(12.0).view({4, 3});
  ours.step();
  theirs.step();
  EXPECT_TRUE(a[0].equal(b[0]));
}

}  // namespace
}  // namespace bimetal::optim

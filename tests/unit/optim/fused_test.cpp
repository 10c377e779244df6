// The fused updates are libtorch's own, and so are their states.
#include "bimetal/optim/fused.h"

#include <gtest/gtest.h>
#include <torch/csrc/api/include/torch/optim.h>
#include <torch/csrc/api/include/torch/types.h>

#include "unit/optim/optimizers_alike.h"

namespace bimetal::optim {
namespace {

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

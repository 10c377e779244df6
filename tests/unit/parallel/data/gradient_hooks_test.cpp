#include "bimetal/parallel/data/gradient_hooks.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/api/include/torch/autograd.h>
#include <torch/csrc/api/include/torch/types.h>

#include <stdexcept>

namespace bimetal::parallel {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::UnorderedElementsAre;

torch::Tensor leaf() {
  return torch::ones({2}, torch::requires_grad());
}

TEST(GradientHooks, ReportEachReachedParameterAfterItsGradientIsThere) {
  const std::vector<torch::Tensor> parameters = {leaf(), leaf(), leaf()};
  std::vector<std::size_t> ready;
  const GradientHooks hooks(parameters, [&](std::size_t i) {
    EXPECT_TRUE(parameters[i].grad().defined());
    ready.push_back(i);
  });
  (parameters[0] * parameters[2]).sum().backward();
  EXPECT_THAT(ready, UnorderedElementsAre(0, 2));
}

TEST(GradientHooks, SeeTheWholeGradientOfAParameterUsedTwice) {
  const auto parameter = leaf();
  double seen = 0;
  int calls = 0;
  const GradientHooks hooks({parameter}, [&](std::size_t) {
    seen = parameter.grad()[0].item<double>();
    ++calls;
  });
  (3 * parameter + 4 * parameter).sum().backward();
  EXPECT_EQ(calls, 1);
  EXPECT_EQ(seen, 7);
}

// libtorch drops a leaf's accumulator with the graph, and hooks with it.
TEST(GradientHooks, OutliveTheGraph) {
  const auto parameter = leaf();
  std::vector<std::size_t> ready;
  const GradientHooks hooks({parameter}, [&](std::size_t i) { ready.push_back(i); });
  for (int step = 0; step < 3; ++step) (2 * parameter).sum().backward();
  EXPECT_THAT(ready, ElementsAre(0, 0, 0));
}

TEST(GradientHooks, AreGoneAfterTheDestructor) {
  const auto parameter = leaf();
  const auto accumulator = torch::autograd::impl::grad_accumulator(parameter);
  std::vector<std::size_t> ready;
  {
    const GradientHooks hooks({parameter}, [&](std::size_t i) { ready.push_back(i); });
    EXPECT_EQ(accumulator->post_hooks().size(), 1u);
  }
  EXPECT_THAT(accumulator->post_hooks(), IsEmpty());
  (2 * parameter).sum().backward();
  EXPECT_THAT(ready, IsEmpty());
}

TEST(GradientHooks, LetExceptionsOutOfBackward) {
  const auto parameter = leaf();
  const GradientHooks hooks({parameter}, [](std::size_t) { throw std::range_error("from hook"); });
  EXPECT_THROW((2 * parameter).sum().backward(), std::range_error);
}

}  // namespace
}  // namespace bimetal::parallel

#include "bimetal/parallel/pipeline/split_backward.h"

#include <ATen/record_function.h>
#include <gtest/gtest.h>
#include <torch/csrc/api/include/torch/types.h>
#include <torch/csrc/api/include/torch/utils.h>

#include <atomic>
#include <functional>
#include <string>

namespace bimetal::parallel::pipeline {
namespace {

std::atomic<int> products{0};

/// Matrix products while it lives.
class CountProducts {
 public:
  CountProducts()
      : handle_(at::addGlobalCallback(
            at::RecordFunctionCallback([](const at::RecordFunction& function)
                                           -> std::unique_ptr<at::ObserverContext> {
              const std::string name = function.name();
              if (name == "aten::mm" || name == "aten::addmm") ++products;
              return nullptr;
            }).scopes({at::RecordScope::FUNCTION}))) {
    products = 0;
  }
  ~CountProducts() { at::removeCallback(handle_); }
  int count() const { return products; }

 private:
  at::CallbackHandle handle_;
};

struct Layers {
  std::vector<torch::Tensor> weights;
  std::function<torch::Tensor(const torch::Tensor&)> run;
};

torch::Tensor drawn(at::IntArrayRef sizes) {
  return torch::randn(sizes, torch::kFloat64).set_requires_grad(true);
}

/// Three linear layers with a normalization between them.
Layers layers() {
  torch::manual_seed(1);
  Layers made{{drawn({8, 8}), drawn({8, 8}), drawn({8, 8}), drawn({8}), drawn({8})}, {}};
  made.run = [w = made.weights](const torch::Tensor& x) {
    const auto y = torch::tanh(torch::matmul(x, w[0].t()));
    const auto z = torch::layer_norm(y, {8}, w[3], w[4]);
    return x + torch::matmul(torch::tanh(torch::matmul(z, w[1].t())), w[2].t());
  };
  return made;
}

/// One weight at two places, and one whose way leads past the inputs.
Layers shared_weight() {
  torch::manual_seed(2);
  Layers made{{drawn({8, 8}), drawn({4, 8})}, {}};
  made.run = [w = made.weights](const torch::Tensor& x) {
    return torch::matmul(torch::tanh(torch::matmul(x, w[0])), w[0]) + torch::tanh(w[1]);
  };
  return made;
}

void expect_same_gradients(const Layers& layers, std::size_t computed_twice) {
  const auto x = drawn({4, 8});
  const auto upstream = torch::randn({4, 8}, torch::kFloat64);
  auto tensors = layers.weights;
  tensors.push_back(x);
  layers.run(x).backward(upstream);
  std::vector<torch::Tensor> expected;
  for (auto& tensor : tensors) {
    expected.push_back(tensor.grad().clone());
    tensor.mutable_grad() = torch::Tensor();
  }
  SplitBackward split({layers.run(x)}, {upstream}, {x});
  EXPECT_EQ(split.computed_twice(), computed_twice);
  split.of_inputs();
  EXPECT_TRUE(x.grad().equal(expected.back()));
  for (const auto& weight : layers.weights) EXPECT_FALSE(weight.grad().defined());
  split.of_weights();
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    EXPECT_TRUE(torch::allclose(tensors[i].grad(), expected[i], 1e-13, 1e-14)) << i;
  }
}

TEST(SplitBackward, GivesTheGradientsOfAWholeBackward) {
  expect_same_gradients(layers(), 0);
}

TEST(SplitBackward, GivesThoseOfWeightsInSeveralPlaces) {
  expect_same_gradients(shared_weight(), 1);
}

TEST(SplitBackward, ComputesNothingTwice) {
  const auto made = layers();
  const auto x = drawn({4, 8});
  const auto upstream = torch::randn({4, 8}, torch::kFloat64);
  const auto output = made.run(x);
  int whole = 0, of_inputs = 0, of_weights = 0;
  {
    const CountProducts count;
    output.backward(upstream, /*retain_graph=*/true);
    whole = count.count();
  }
  SplitBackward split({output}, {upstream}, {x});
  {
    const CountProducts count;
    split.of_inputs();
    of_inputs = count.count();
  }
  {
    const CountProducts count;
    split.of_weights();
    of_weights = count.count();
  }
  EXPECT_EQ(whole, 6);
  EXPECT_EQ(of_inputs, 3);
  EXPECT_EQ(of_weights, 3);
}

TEST(SplitBackward, WithoutInputsAllIsTheSecondPart) {
  const auto made = layers();
  const auto x = torch::randn({4, 8}, torch::kFloat64);
  const auto output = made.run(x);
  SplitBackward split({output}, {torch::ones_like(output)}, {});
  split.of_inputs();
  EXPECT_FALSE(made.weights[0].grad().defined());
  split.of_weights();
  EXPECT_TRUE(made.weights[0].grad().defined());
}

}  // namespace
}  // namespace bimetal::parallel::pipeline

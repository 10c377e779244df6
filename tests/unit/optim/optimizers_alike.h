#pragma once
// Optimizers that are to do what libtorch's do: parameters, states and their names.

#include <gtest/gtest.h>
#include <torch/csrc/api/include/torch/optim.h>
#include <torch/csrc/api/include/torch/types.h>
#include <torch/csrc/api/include/torch/utils.h>

#include "bimetal/checkpoint/optimizer_state.h"
#include "bimetal/optim/part_of_step.h"
#include "bimetal/task/task.h"

namespace bimetal::optim {

using Tensors = std::vector<torch::Tensor>;

inline Tensors start(torch::ScalarType dtype) {
  torch::manual_seed(5);
  return {torch::randn({6, 5}, dtype), torch::randn({7}, dtype), torch::randn({3, 2, 2}, dtype)};
}

/// Steps with gradients that the step's number gives; the second parameter has none in the first.
inline void train(torch::optim::Optimizer& optimizer, const Tensors& parameters, double part = 1) {
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

}  // namespace bimetal::optim

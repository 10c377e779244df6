#pragma once
// A model of linear layers without biases, each a unit.

#include <torch/csrc/api/include/torch/nn.h>
#include <torch/csrc/api/include/torch/utils.h>

#include <cstdint>
#include <memory>
#include <string>

#include "bimetal/task/task.h"

namespace bimetal::parallel::shard {

inline task::Model make_linear_units(int count, std::uint64_t seed) {
  torch::manual_seed(seed);
  task::Model model;
  for (int i = 0; i < count; ++i) {
    auto layer =
        std::make_shared<torch::nn::LinearImpl>(torch::nn::LinearOptions(4, 4).bias(false));
    layer->to(torch::kFloat64);
    model.units.push_back(task::make_unit(
        "layer" + std::to_string(i), layer,
        [layer](torch::Tensor input) { return torch::tanh(layer->forward(input)); }));
  }
  return model;
}

inline torch::Tensor loss_of_linear_units(const task::Model& model, int samples) {
  const auto input = torch::ones({samples, 4}, torch::kFloat64);
  return task::run_units(model, {input}).front().sum();
}

}  // namespace bimetal::parallel::shard

#include "bimetal/models/mlp.h"

#include <torch/torch.h>

namespace bimetal::models {
namespace {

constexpr std::int64_t kHidden = 256;

}  // namespace

Mlp::Mlp(ImageShape shape)
    : fc1_(register_module(
          "fc1", torch::nn::Linear(shape.channels * shape.height * shape.width, kHidden))),
      fc2_(register_module("fc2", torch::nn::Linear(kHidden, kHidden))),
      fc3_(register_module("fc3", torch::nn::Linear(kHidden, shape.classes))) {}

torch::Tensor Mlp::forward(torch::Tensor x) {
  x = fc1_->forward(x.flatten(1)).relu_();
  x = fc2_->forward(x).relu_();
  return fc3_->forward(x);
}

}  // namespace bimetal::models

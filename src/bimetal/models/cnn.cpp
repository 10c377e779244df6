#include "bimetal/models/cnn.h"

#include <torch/torch.h>

namespace bimetal::models {
namespace {

torch::nn::Conv2d same_size_conv(std::int64_t in, std::int64_t out) {
  return torch::nn::Conv2d(torch::nn::Conv2dOptions(in, out, /*kernel_size=*/3).padding(1));
}

}  // namespace

Cnn::Cnn(ImageShape shape, std::int64_t hidden)
    : conv1_(register_module("conv1", same_size_conv(shape.channels, 32))),
      conv2_(register_module("conv2", same_size_conv(32, 64))),
      fc1_(register_module("fc1",
                           torch::nn::Linear(64 * (shape.height / 4) * (shape.width / 4), hidden))),
      fc2_(register_module("fc2", torch::nn::Linear(hidden, shape.classes))) {}

torch::Tensor Cnn::forward(torch::Tensor x) {
  x = torch::max_pool2d(ready(conv1_)->forward(x).relu_(), 2);
  x = torch::max_pool2d(ready(conv2_)->forward(x).relu_(), 2);
  // flatten(1), not view({b, -1}): -1 has no meaning for an empty batch.
  x = ready(fc1_)->forward(x.flatten(1)).relu_();
  return ready(fc2_)->forward(x);
}

}  // namespace bimetal::models

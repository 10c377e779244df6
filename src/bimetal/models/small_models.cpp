#include "bimetal/models/small_models.h"

#include <torch/csrc/api/include/torch/nn.h>

namespace bimetal::models {

Linear::Linear(ImageShape shape) {
  add_layer(
      "fc", torch::nn::Linear(shape.channels * shape.height * shape.width, shape.classes),
      [](torch::nn::LinearImpl& fc, const torch::Tensor& x) { return fc.forward(x.flatten(1)); });
}

Mlp::Mlp(ImageShape shape, std::int64_t hidden) {
  using torch::nn::Linear, torch::nn::LinearImpl;
  const auto with_relu = [](LinearImpl& fc, const torch::Tensor& x) {
    return fc.forward(x.flatten(1)).relu_();
  };
  add_layer("fc1", Linear(shape.channels * shape.height * shape.width, hidden), with_relu);
  add_layer("fc2", Linear(hidden, hidden), with_relu);
  add_layer("fc3", Linear(hidden, shape.classes),
            [](LinearImpl& fc, const torch::Tensor& x) { return fc.forward(x); });
}

namespace {

torch::nn::Conv2d same_size_conv(std::int64_t in, std::int64_t out) {
  return torch::nn::Conv2d(torch::nn::Conv2dOptions(in, out, /*kernel_size=*/3).padding(1));
}

torch::Tensor pooled(torch::nn::Conv2dImpl& conv, const torch::Tensor& x) {
  return torch::max_pool2d(conv.forward(x).relu_(), 2);
}

}  // namespace

Cnn::Cnn(ImageShape shape, std::int64_t hidden) {
  using torch::nn::Linear, torch::nn::LinearImpl;
  add_layer("conv1", same_size_conv(shape.channels, 32), pooled);
  add_layer("conv2", same_size_conv(32, 64), pooled);
  // flatten(1), not view({b, -1}): -1 has no meaning for an empty batch.
  add_layer(
      "fc1", Linear(64 * (shape.height / 4) * (shape.width / 4), hidden),
      [](LinearImpl& fc, const torch::Tensor& x) { return fc.forward(x.flatten(1)).relu_(); });
  add_layer("fc2", Linear(hidden, shape.classes),
            [](LinearImpl& fc, const torch::Tensor& x) { return fc.forward(x); });
}

}  // namespace bimetal::models

#pragma once
// The reference convolutional network.

#include <torch/csrc/api/include/torch/nn/modules/conv.h>
#include <torch/csrc/api/include/torch/nn/modules/linear.h>

#include "bimetal/models/registry.h"

namespace bimetal::models {

/// conv1 (32 channels) and conv2 (64), 3×3, padded so that they keep the size, each with ReLU and
/// 2×2 max-pool; then fc1 (128, ReLU) and fc2 (classes). Height and width ≥ 4.
class Cnn final : public Classifier {
 public:
  explicit Cnn(ImageShape shape);
  torch::Tensor forward(torch::Tensor x) override;

 private:
  torch::nn::Conv2d conv1_, conv2_;
  torch::nn::Linear fc1_, fc2_;
};

}  // namespace bimetal::models

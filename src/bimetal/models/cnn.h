#pragma once
// The reference convolutional network.

#include <torch/csrc/api/include/torch/nn/modules/conv.h>
#include <torch/csrc/api/include/torch/nn/modules/linear.h>

#include "bimetal/models/registry.h"

namespace bimetal::models {

inline constexpr std::int64_t kCnnHidden = 128;

/// conv1 (32 channels) and conv2 (64), 3×3, padded so that they keep the size, each with ReLU and
/// 2×2 max-pool; then fc1 (`hidden`, ReLU) and fc2 (classes). Height and width ≥ 4.
class Cnn final : public Classifier {
 public:
  explicit Cnn(ImageShape shape, std::int64_t hidden = kCnnHidden);
  torch::Tensor forward(torch::Tensor x) override;

 private:
  torch::nn::Conv2d conv1_, conv2_;
  torch::nn::Linear fc1_, fc2_;
};

}  // namespace bimetal::models

#pragma once
// The reference multi-layer perceptron.

#include <torch/csrc/api/include/torch/nn/modules/linear.h>

#include "bimetal/models/registry.h"

namespace bimetal::models {

inline constexpr std::int64_t kMlpHidden = 256;

/// fc1 and fc2 (`hidden` each, ReLU), then fc3 (classes), on the flattened image.
class Mlp final : public Classifier {
 public:
  explicit Mlp(ImageShape shape, std::int64_t hidden = kMlpHidden);
  torch::Tensor forward(torch::Tensor x) override;

 private:
  torch::nn::Linear fc1_, fc2_, fc3_;
};

}  // namespace bimetal::models

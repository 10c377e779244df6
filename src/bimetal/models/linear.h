#pragma once
// Softmax regression: the smallest model there is, for tests and for measuring overhead.

#include <torch/csrc/api/include/torch/nn/modules/linear.h>

#include "bimetal/models/registry.h"

namespace bimetal::models {

/// One layer, fc, from the flattened image to the logits.
class Linear final : public Classifier {
 public:
  explicit Linear(ImageShape shape);
  torch::Tensor forward(torch::Tensor x) override;

 private:
  torch::nn::Linear fc_;
};

}  // namespace bimetal::models

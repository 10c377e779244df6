#include "bimetal/models/mlp.h"

#include <torch/torch.h>

namespace bimetal::models {

Mlp::Mlp(ImageShape shape, std::int64_t hidden)
    : fc1_(register_module("fc1",
                           torch::nn::Linear(shape.channels * shape.height * shape.width, hidden))),
      fc2_(register_module("fc2", torch::nn::Linear(hidden, hidden))),
      fc3_(register_module("fc3", torch::nn::Linear(hidden, shape.classes))) {}

torch::Tensor Mlp::forward(torch::Tensor x) {
  x = ready(fc1_)->forward(x.flatten(1)).relu_();
  x = ready(fc2_)->forward(x).relu_();
  return ready(fc3_)->forward(x);
}

}  // namespace bimetal::models

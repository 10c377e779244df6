#include "bimetal/models/mlp.h"

#include <torch/csrc/api/include/torch/nn.h>

namespace bimetal::models {

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

}  // namespace bimetal::models

#include "bimetal/models/linear.h"

#include <torch/csrc/api/include/torch/nn.h>

namespace bimetal::models {

Linear::Linear(ImageShape shape) {
  add_layer(
      "fc", torch::nn::Linear(shape.channels * shape.height * shape.width, shape.classes),
      [](torch::nn::LinearImpl& fc, const torch::Tensor& x) { return fc.forward(x.flatten(1)); });
}

}  // namespace bimetal::models

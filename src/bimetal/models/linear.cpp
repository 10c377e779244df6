#include "bimetal/models/linear.h"

#include <torch/torch.h>

namespace bimetal::models {

Linear::Linear(ImageShape shape)
    : fc_(register_module(
          "fc", torch::nn::Linear(shape.channels * shape.height * shape.width, shape.classes))) {}

torch::Tensor Linear::forward(torch::Tensor x) {
  return ready(fc_)->forward(x.flatten(1));
}

}  // namespace bimetal::models

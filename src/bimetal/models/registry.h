#pragma once
// Reference models of images by name, with no distribution code in them.

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "bimetal/models/classifier.h"

namespace bimetal::models {

struct ImageShape {
  std::int64_t channels = 1, height = 28, width = 28, classes = 10;
};

/// Names: "cnn" (convolutions 1→32→64 of 3×3, each with ReLU and 2×2 max-pool; 128 hidden),
/// "mlp" (two hidden layers of 256), "linear" (softmax regression), "resnet18", "resnet34",
/// "resnet50" (resnet.h; first stage of 64 channels). `hidden` is another width of those hidden
/// layers, or of that stage; 0: these. `norm_group`: of resnets, how many samples are normalised
/// together (task/batch_norm.h); 0: each by itself. Error(InvalidArgument) gives the nearest known name, or says
/// what the model cannot take: "linear" has no hidden layer.
std::shared_ptr<Classifier> make_model(const std::string& name, ImageShape shape,
                                       std::int64_t hidden = 0, std::int64_t norm_group = 0);

std::vector<std::string> model_names();

}  // namespace bimetal::models

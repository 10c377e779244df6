#include "bimetal/models/registry.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/csrc/api/include/torch/nn.h>

#include <array>
#include <string_view>

#include "bimetal/base/error.h"
#include "bimetal/base/typed_text.h"
#include "bimetal/models/resnet.h"

namespace bimetal::models {
namespace {

constexpr std::array<std::string_view, 6> kNames = {"cnn",      "mlp",      "linear",
                                                    "resnet18", "resnet34", "resnet50"};

constexpr std::int64_t kMostHidden = 65536;  // more would be a mistake, of 16 GiB at least

void check_hidden(const std::string& name, std::int64_t hidden, std::int64_t norm_group) {
  if (hidden < 0 || hidden > kMostHidden) {
    throw Error(ErrorCode::InvalidArgument,
                fmt::format("model.hidden = {} is no width from 1 to {} (or 0, the model's own)",
                            hidden, kMostHidden));
  }
  if (hidden != 0 && name == "linear") {
    throw Error(ErrorCode::InvalidArgument,
                "model 'linear' has no hidden layer: leave model.hidden out, or use 'mlp'");
  }
  if (resnet_depth(name) && norm_group == 0 && hidden % kNormGroups != 0) {
    throw Error(ErrorCode::InvalidArgument,
                fmt::format("model.hidden = {} are the channels of the first stage of '{}', which "
                            "are normalised in {} groups: take a multiple of {}",
                            hidden, name, kNormGroups, kNormGroups));
  }
}

void check_norm(const std::string& name, std::int64_t norm_group) {
  if (norm_group == 0 || resnet_depth(name)) return;
  throw Error(
      ErrorCode::InvalidArgument,
      fmt::format("model '{}' has no normalisation: leave model.norm out, or use 'resnet18'",
                  name));
}

void check_shape(const std::string& name, const ImageShape& shape) {
  if (shape.channels < 1 || shape.height < 1 || shape.width < 1 || shape.classes < 1) {
    throw Error(ErrorCode::InvalidArgument,
                fmt::format("model '{}' cannot take images of {}x{}x{} in {} classes: each number "
                            "must be at least 1",
                            name, shape.channels, shape.height, shape.width, shape.classes));
  }
  if (name == "cnn" && (shape.height < 4 || shape.width < 4)) {
    throw Error(ErrorCode::InvalidArgument,
                fmt::format("model 'cnn' halves its images twice and needs at least 4x4 pixels, "
                            "not {}x{}; use 'mlp' or 'linear'",
                            shape.height, shape.width));
  }
  if (resnet_depth(name) && (shape.height < kLeastResNetSize || shape.width < kLeastResNetSize)) {
    throw Error(ErrorCode::InvalidArgument,
                fmt::format("model '{}' halves its images three times and needs at least {}x{} "
                            "pixels, not {}x{}; use 'cnn' or 'mlp'",
                            name, kLeastResNetSize, kLeastResNetSize, shape.height, shape.width));
  }
}

}  // namespace

std::shared_ptr<Classifier> make_model(const std::string& name, ImageShape shape,
                                       std::int64_t hidden, std::int64_t norm_group) {
  check_shape(name, shape);
  check_hidden(name, hidden, norm_group);
  check_norm(name, norm_group);
  if (name == "cnn") return std::make_shared<Cnn>(shape, hidden > 0 ? hidden : kCnnHidden);
  if (name == "mlp") return std::make_shared<Mlp>(shape, hidden > 0 ? hidden : kMlpHidden);
  if (name == "linear") return std::make_shared<Linear>(shape);
  if (const auto depth = resnet_depth(name)) {
    return std::make_shared<ResNet>(*depth, shape, hidden > 0 ? hidden : kResNetWidth, norm_group);
  }
  throw Error(ErrorCode::InvalidArgument,
              fmt::format("no model is called '{}'; did you mean '{}'? Known: {}", name,
                          nearest_name(name, kNames), fmt::join(kNames, ", ")));
}

std::vector<std::string> model_names() {
  return {kNames.begin(), kNames.end()};
}

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

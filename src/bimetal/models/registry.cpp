#include "bimetal/models/registry.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/csrc/api/include/torch/nn.h>

#include <algorithm>
#include <array>
#include <string>
#include <string_view>

#include "bimetal/base/error.h"
#include "bimetal/base/typed_text.h"
#include "bimetal/task/batch_norm.h"

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

torch::nn::Conv2d residual_conv(std::int64_t in, std::int64_t out, std::int64_t kernel,
                                std::int64_t stride) {
  torch::nn::Conv2d conv(torch::nn::Conv2dOptions(in, out, kernel)
                             .stride(stride)
                             .padding((kernel - 1) / 2)
                             .bias(false));
  torch::nn::init::kaiming_normal_(conv->weight, /*a=*/0, torch::kFanOut, torch::kReLU);
  return conv;
}

torch::nn::AnyModule residual_norm(std::int64_t channels, std::int64_t samples) {
  if (samples > 0) return torch::nn::AnyModule(task::GroupedBatchNorm(channels, samples));
  return torch::nn::AnyModule(
      torch::nn::GroupNorm(torch::nn::GroupNormOptions(kNormGroups, channels)));
}

std::int64_t expansion_of(BlockKind kind) {
  return kind == BlockKind::Bottleneck ? 4 : 1;
}

ResidualBlockImpl::ResidualBlockImpl(BlockKind kind, std::int64_t in, std::int64_t width,
                                     std::int64_t stride, std::int64_t samples) {
  const auto out = width * expansion_of(kind);
  if (kind == BlockKind::Basic) {
    add(in, width, 3, stride, samples);
    add(width, out, 3, 1, samples);
  } else {
    add(in, width, 1, 1, samples);
    add(width, width, 3, stride, samples);
    add(width, out, 1, 1, samples);
  }
  torch::nn::init::zeros_(norms_.back().ptr()->named_parameters()["weight"]);
  if (stride != 1 || in != out) {
    downsample_ = register_module(
        "downsample", torch::nn::Sequential(torch::nn::AnyModule(residual_conv(in, out, 1, stride)),
                                            residual_norm(out, samples)));
  }
}

void ResidualBlockImpl::add(std::int64_t in, std::int64_t out, std::int64_t kernel,
                            std::int64_t stride, std::int64_t samples) {
  const auto number = std::to_string(convs_.size() + 1);
  convs_.push_back(register_module("conv" + number, residual_conv(in, out, kernel, stride)));
  norms_.push_back(residual_norm(out, samples));
  register_module("bn" + number, norms_.back().ptr());
}

// In place is only what no backward looks at: the normalisation's and the sum's result.
torch::Tensor ResidualBlockImpl::forward(const torch::Tensor& x) {
  auto y = x;
  for (std::size_t i = 0; i < convs_.size(); ++i) {
    if (i > 0) y.relu_();
    y = norms_[i].forward(convs_[i]->forward(y));
  }
  return y.add_(downsample_ ? downsample_->forward(x) : x).relu_();
}

namespace {

constexpr std::int64_t kSmallImage = 64;  // up to so many pixels a side

struct NamedDepth {
  std::string_view name;
  ResNetDepth depth;
};

constexpr std::array<NamedDepth, 3> kDepths = {{
    {"resnet18", {BlockKind::Basic, {2, 2, 2, 2}}},
    {"resnet34", {BlockKind::Basic, {3, 4, 6, 3}}},
    {"resnet50", {BlockKind::Bottleneck, {3, 4, 6, 3}}},
}};

torch::Tensor convolved(torch::nn::Conv2dImpl& conv, const torch::Tensor& x) {
  return conv.forward(x);
}

torch::Tensor max_pooled(const torch::Tensor& x) {
  return torch::max_pool2d(x, /*kernel_size=*/3, /*stride=*/2, /*padding=*/1);
}

}  // namespace

std::optional<ResNetDepth> resnet_depth(std::string_view name) {
  const auto found = std::ranges::find(kDepths, name, &NamedDepth::name);
  return found == kDepths.end() ? std::nullopt : std::optional(found->depth);
}

ResNet::ResNet(const ResNetDepth& depth, ImageShape shape, std::int64_t width,
               std::int64_t samples) {
  const bool small = std::max(shape.height, shape.width) <= kSmallImage;
  auto norm = residual_norm(width, samples);
  add_layer("conv1", residual_conv(shape.channels, width, small ? 3 : 7, small ? 1 : 2), convolved);
  add_registered("bn1", register_module("bn1", norm.ptr()),
                 [norm, small](torch::nn::Module&, const torch::Tensor& x) {
                   auto held = norm;  // forward() is not const
                   const auto y = held.forward(x).relu_();
                   return small ? y : max_pooled(y);
                 });
  auto channels = width;
  for (std::size_t i = 0; i < depth.blocks.size(); ++i) {
    const auto name = fmt::format("layer{}", i + 1);
    const auto stage = register_module(name, torch::nn::ModuleList());
    const auto stage_width = width << i;
    for (std::int64_t b = 0; b < depth.blocks[i]; ++b) {
      const ResidualBlock block(depth.kind, channels, stage_width, b == 0 && i > 0 ? 2 : 1,
                                samples);
      stage->push_back(block);
      add_registered(
          fmt::format("{}.{}", name, b), block.ptr(),
          [](ResidualBlockImpl& residual, const torch::Tensor& x) { return residual.forward(x); });
      channels = stage_width * expansion_of(depth.kind);
    }
  }
  add_layer("fc", torch::nn::Linear(channels, shape.classes),
            [](torch::nn::LinearImpl& fc, const torch::Tensor& x) {
              return fc.forward(x.mean({2, 3}));
            });
}

}  // namespace bimetal::models

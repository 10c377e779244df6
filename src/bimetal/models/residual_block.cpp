#include "bimetal/models/residual_block.h"

#include <torch/csrc/api/include/torch/nn.h>

#include <string>

#include "bimetal/task/batch_norm.h"

namespace bimetal::models {

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
        "downsample",
        torch::nn::Sequential(torch::nn::AnyModule(residual_conv(in, out, 1, stride)),
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

}  // namespace bimetal::models

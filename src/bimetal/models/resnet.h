#pragma once
// Residual networks of 18, 34 and 50 layers.

#include <torch/csrc/api/include/torch/nn/modules/container/any.h>
#include <torch/csrc/api/include/torch/nn/modules/container/sequential.h>
#include <torch/csrc/api/include/torch/nn/modules/conv.h>
#include <torch/csrc/api/include/torch/nn/pimpl.h>

#include <array>
#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "bimetal/models/registry.h"

namespace bimetal::models {

// What residual networks repeat (He et al. 2016, "Deep residual learning for image recognition",
// section 3 and figure 5). Their normalisation is by groups of channels (Wu and He 2018), which
// looks at no other sample, or over groups of samples that do not hang on who computes them
// (task/batch_norm.h): either way any split of a batch computes the same.

/// In which the channels are normalised.
inline constexpr std::int64_t kNormGroups = 32;

/// Without a bias, padded by (kernel − 1) ÷ 2; drawn as He et al. 2015 have it, by what goes out.
torch::nn::Conv2d residual_conv(std::int64_t in, std::int64_t out, std::int64_t kernel,
                                std::int64_t stride);

/// `samples`: how many are normalised together; 0: by groups of channels, of which there is then a
/// multiple of kNormGroups. Weights and biases have the same names either way.
torch::nn::AnyModule residual_norm(std::int64_t channels, std::int64_t samples);

enum class BlockKind {
  Basic,      ///< 3×3, 3×3
  Bottleneck  ///< 1×1, 3×3, 1×1 to four times the width
};

/// How many times its width leave a block.
std::int64_t expansion_of(BlockKind kind);

/// relu(f(x) + x): [b, in, H, W] to [b, width × expansion, H ÷ stride, W ÷ stride], rounded up.
/// Where that is another shape, x goes through a 1×1 convolution of that stride. The stride is that
/// of the first 3×3. The last norm's weight begins at 0, so that the block begins as x (Goyal et
/// al. 2017, section 5.1). Parameters are called conv1, bn1, … downsample.0, downsample.1, as in
/// torchvision.
class ResidualBlockImpl final : public torch::nn::Module {
 public:
  /// `samples`: as residual_norm() has it.
  ResidualBlockImpl(BlockKind kind, std::int64_t in, std::int64_t width, std::int64_t stride,
                    std::int64_t samples = 0);

  torch::Tensor forward(const torch::Tensor& x);

 private:
  void add(std::int64_t in, std::int64_t out, std::int64_t kernel, std::int64_t stride,
           std::int64_t samples);

  std::vector<torch::nn::Conv2d> convs_;
  std::vector<torch::nn::AnyModule> norms_;
  torch::nn::Sequential downsample_ = nullptr;  ///< nullptr: x is added as it is
};
TORCH_MODULE(ResidualBlock);

inline constexpr std::int64_t kResNetWidth = 64;
inline constexpr std::int64_t kLeastResNetSize = 8;

/// How many blocks a stage has, and of which kind.
struct ResNetDepth {
  BlockKind kind = BlockKind::Basic;
  std::array<std::int64_t, 4> blocks = {};
};

/// Of "resnet18", "resnet34", "resnet50"; nothing for other names.
std::optional<ResNetDepth> resnet_depth(std::string_view name);

/// He et al. 2016, table 1: conv1, bn1, four stages layer1 … layer4 of residual blocks of which
/// each but the first halves the size and doubles the channels, the mean over all pixels, fc. Each
/// block is a unit; parameters have the names and shapes of torchvision's. The norm is by groups of
/// channels, without running statistics, or over groups of `samples` of them.
/// Images of up to 64 pixels a side are not made smaller before the first stage (section 4.2: a 3×3
/// conv1), larger ones by four (a 7×7 of stride 2, and 3×3 max-pool). Height and width ≥
/// kLeastResNetSize; `width` is the first stage's, a multiple of kNormGroups.
class ResNet final : public Classifier {
 public:
  ResNet(const ResNetDepth& depth, ImageShape shape, std::int64_t width = kResNetWidth,
         std::int64_t samples = 0);
};

}  // namespace bimetal::models

#pragma once
// Reference models of images by name, with no distribution code in them.
//
// Residual networks of 18, 34 and 50 layers.

#include <torch/csrc/api/include/torch/nn/module.h>
#include <torch/csrc/api/include/torch/nn/modules/container/any.h>
#include <torch/csrc/api/include/torch/nn/modules/container/sequential.h>
#include <torch/csrc/api/include/torch/nn/modules/conv.h>
#include <torch/csrc/api/include/torch/nn/pimpl.h>

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "bimetal/task/unit.h"

namespace bimetal::models {

// The parts of the reference models: layers, each of them a unit.

/// A classifier of images: takes [b, C, H, W], gives logits [b, classes]. Its layers hold all of
/// its parameters.
class Classifier : public torch::nn::Module {
 public:
  /// All layers in their order.
  torch::Tensor forward(torch::Tensor x) const {
    for (const auto& layer : layers_) x = layer.forward(std::move(x));
    return x;
  }

  /// The same with each layer as a unit, which keeps it alive.
  task::Model units() const {
    task::Model model;
    for (const auto& layer : layers_) {
      model.units.push_back(task::make_unit(layer.name, layer.module, layer.forward));
    }
    return model;
  }

 protected:
  using Forward = std::function<torch::Tensor(torch::Tensor x)>;

  /// Registers `layer`; `compute(layer, x)` runs it.
  template <typename Contained, typename Compute>
  void add_layer(const std::string& name, const torch::nn::ModuleHolder<Contained>& layer,
                 Compute compute) {
    add_registered(name, register_module(name, layer.ptr()), compute);
  }

  /// The same for one that is registered in a module of this one; `name` is its whole name.
  template <typename Contained, typename Compute>
  void add_registered(const std::string& name, const std::shared_ptr<Contained>& module,
                      Compute compute) {
    layers_.push_back({name, module, [module, compute](torch::Tensor x) {
                         return compute(*module, std::move(x));
                       }});
  }

 private:
  struct Layer {
    std::string name;
    std::shared_ptr<torch::nn::Module> module;
    Forward forward;
  };
  std::vector<Layer> layers_;
};

struct ImageShape {
  std::int64_t channels = 1, height = 28, width = 28, classes = 10;
};

/// Names: "cnn" (convolutions 1→32→64 of 3×3, each with ReLU and 2×2 max-pool; 128 hidden),
/// "mlp" (two hidden layers of 256), "linear" (softmax regression), "resnet18", "resnet34",
/// "resnet50" (below; first stage of 64 channels). `hidden` is another width of those hidden
/// layers, or of that stage; 0: these. `norm_group`: for resnets, the number of samples that are
/// normalised together (task/batch_norm.h); 0: each by itself. Error(InvalidArgument) gives the
/// nearest known name, or says what the model cannot take: "linear" has no hidden layer.
std::shared_ptr<Classifier> make_model(const std::string& name, ImageShape shape,
                                       std::int64_t hidden = 0, std::int64_t norm_group = 0);

std::vector<std::string> model_names();

// Softmax regression: the smallest model there is, for tests and for measuring overhead.

/// One layer, fc, from the flattened image to the logits.
class Linear final : public Classifier {
 public:
  explicit Linear(ImageShape shape);
};

// The reference multi-layer perceptron.

inline constexpr std::int64_t kMlpHidden = 256;

/// fc1 and fc2 (`hidden` each, ReLU), then fc3 (classes), on the flattened image.
class Mlp final : public Classifier {
 public:
  explicit Mlp(ImageShape shape, std::int64_t hidden = kMlpHidden);
};

// The reference convolutional network.

inline constexpr std::int64_t kCnnHidden = 128;

/// conv1 (32 channels) and conv2 (64), 3×3, padded so that they keep the size, each with ReLU and
/// 2×2 max-pool; then fc1 (`hidden`, ReLU) and fc2 (classes). Height and width ≥ 4.
class Cnn final : public Classifier {
 public:
  explicit Cnn(ImageShape shape, std::int64_t hidden = kCnnHidden);
};

// The repeated block of residual networks (He et al. 2016, "Deep residual learning for image
// recognition", section 3 and figure 5). Their normalisation is by groups of channels (Wu and He
// 2018), which looks at no other sample, or over groups of samples that do not depend on the rank
// that computes them (task/batch_norm.h): either way any split of a batch computes the same.

/// The number of groups in which channels are normalised.
inline constexpr std::int64_t kNormGroups = 32;

/// Without a bias, padded by (kernel − 1) ÷ 2; drawn as in He et al. 2015, by the number of
/// outputs.
torch::nn::Conv2d residual_conv(std::int64_t in, std::int64_t out, std::int64_t kernel,
                                std::int64_t stride);

/// `samples`: how many are normalised together; 0: by groups of channels, whose number is then a
/// multiple of kNormGroups. Weights and biases have the same names either way.
torch::nn::AnyModule residual_norm(std::int64_t channels, std::int64_t samples);

enum class BlockKind {
  Basic,      ///< 3×3, 3×3
  Bottleneck  ///< 1×1, 3×3, 1×1 to four times the width
};

/// How many times its width leave a block.
std::int64_t expansion_of(BlockKind kind);

/// relu(f(x) + x): [b, in, H, W] to [b, width × expansion, H ÷ stride, W ÷ stride], rounded up.
/// If the shape changes, x goes through a 1×1 convolution of that stride. The stride is that of the
/// first 3×3. The last norm's weight begins at 0, so that the block begins as x (Goyal et al. 2017,
/// section 5.1). Parameters are called conv1, bn1, … downsample.0, downsample.1, as in torchvision.
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

/// The depth of "resnet18", "resnet34" and "resnet50"; nothing for other names.
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

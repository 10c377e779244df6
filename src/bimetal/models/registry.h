#pragma once
// Reference models of images by name, with no distribution code in them.

#include <torch/csrc/api/include/torch/nn/module.h>
#include <torch/csrc/api/include/torch/nn/pimpl.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "bimetal/task/unit.h"

namespace bimetal::models {

// What the reference models are made of: layers, each of them a unit.

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

  /// Registers `layer`; `compute(layer, x)` is what is done with it.
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
/// "resnet50" (resnet.h; first stage of 64 channels). `hidden` is another width of those hidden
/// layers, or of that stage; 0: these. `norm_group`: of resnets, how many samples are normalised
/// together (task/batch_norm.h); 0: each by itself. Error(InvalidArgument) gives the nearest known
/// name, or says what the model cannot take: "linear" has no hidden layer.
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

}  // namespace bimetal::models

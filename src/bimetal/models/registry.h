#pragma once
// Small reference models by name, with no distribution code in them.

#include <torch/csrc/api/include/torch/nn/pimpl.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace bimetal::models {

/// A classifier of images: forward takes [b, C, H, W], gives logits [b, classes].
class Classifier : public torch::nn::Module {
 public:
  virtual torch::Tensor forward(torch::Tensor x) = 0;

  /// From now on forward() calls `wait` with a child before it uses that child's parameters, which
  /// may arrive while it runs. Nothing to wait for: an empty function.
  void before_use(std::function<void(const torch::nn::Module& child)> wait) {
    wait_ = std::move(wait);
  }

 protected:
  /// forward() gets at the children, which hold all parameters, by this alone.
  template <typename Child>
  Child& ready(Child& child) const {
    if (wait_) wait_(*child);
    return child;
  }

 private:
  std::function<void(const torch::nn::Module& child)> wait_;
};

struct ImageShape {
  std::int64_t channels = 1, height = 28, width = 28, classes = 10;
};

/// Names: "cnn" (convolutions 1→32→64 of 3×3, each with ReLU and 2×2 max-pool; 128 hidden),
/// "mlp" (two hidden layers of 256), "linear" (softmax regression). `hidden` is another width of
/// those hidden layers; 0: these. Error(InvalidArgument) gives the nearest known name, or says that
/// "linear" has no hidden layer.
std::shared_ptr<Classifier> make_model(const std::string& name, ImageShape shape,
                                       std::int64_t hidden = 0);

std::vector<std::string> model_names();

}  // namespace bimetal::models

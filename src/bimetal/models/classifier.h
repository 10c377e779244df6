#pragma once
// What the reference models are made of: layers, each of them a unit.

#include <torch/csrc/api/include/torch/nn/module.h>
#include <torch/csrc/api/include/torch/nn/pimpl.h>

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "bimetal/task/unit.h"

namespace bimetal::models {

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

}  // namespace bimetal::models

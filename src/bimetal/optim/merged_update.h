#pragma once
// What optimizers can whose update multiplies the gradients itself, so that unscaling and clipping
// take no passes over memory of their own, and goes from parameter to parameter.

#include <torch/csrc/api/include/torch/types.h>

#include <functional>

namespace bimetal::optim {

class MergedUpdate {
 public:
  virtual ~MergedUpdate() = default;
  /// Steps from now on take gradients times `factor`, and leave them as they are.
  virtual void set_gradient_factor(double factor) = 0;
  /// What steps call whenever they are through with a parameter.
  virtual void set_after_parameter(std::function<void(const torch::Tensor& parameter)> then) = 0;
};

}  // namespace bimetal::optim

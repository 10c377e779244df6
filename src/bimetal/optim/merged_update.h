#pragma once
// What optimizers can whose update multiplies the gradients itself, and writes what parameters have
// become in bfloat16, too, so that unscaling, clipping and the copy take no passes over memory of
// their own, and goes from parameter to parameter.

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
  /// Where steps write a parameter that they change in bfloat16, too: contiguous memory of the host
  /// for as many elements; undefined: nowhere.
  virtual void set_bfloat16(std::function<torch::Tensor(const torch::Tensor& parameter)> of) = 0;
};

}  // namespace bimetal::optim

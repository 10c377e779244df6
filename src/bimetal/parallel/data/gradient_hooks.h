#pragma once
// Reports when each parameter's gradient of a backward pass is complete.

#include <torch/csrc/api/include/torch/types.h>
#include <torch/csrc/autograd/variable.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

namespace bimetal::parallel {

/// Calls `on_ready(i)` once per backward pass after parameter i's gradient has been accumulated
/// into its grad(), on the thread that runs that part of backward (with several devices: several
/// threads at once). Parameters that the pass does not reach are not reported. What `on_ready`
/// throws leaves backward(). The hooks are gone after the destructor.
class GradientHooks {
 public:
  GradientHooks(const std::vector<torch::Tensor>& parameters,
                std::function<void(std::size_t)> on_ready);
  ~GradientHooks();
  GradientHooks(const GradientHooks&) = delete;
  GradientHooks& operator=(const GradientHooks&) = delete;

 private:
  // libtorch keeps a leaf's accumulator only while a graph refers to it, so it is held here.
  using Accumulator = decltype(torch::autograd::impl::grad_accumulator(torch::Tensor()));
  struct Hook {
    Accumulator accumulator;
    std::uintptr_t key;
  };
  std::vector<Hook> hooks_;
};

}  // namespace bimetal::parallel

#pragma once
// libtorch's Adam, AdamW and SGD with the update of all parameters in one pass over memory, in the
// place of one kernel for each operation. What they compute, their options and their state are
// libtorch's own, so that checkpoints do not tell one from the other.

#include <torch/csrc/api/include/torch/optim/adam.h>
#include <torch/csrc/api/include/torch/optim/adamw.h>
#include <torch/csrc/api/include/torch/optim/sgd.h>

namespace bimetal::optim {

/// Each takes its class's own way where libtorch's fused kernel would not do the same: on devices
/// other than CPUs and CUDA's, with amsgrad, and for tensors that are not contiguous, whose
/// gradient's elements may lie in another order than their own. Use from one thread.

class FusedAdam final : public torch::optim::Adam {
 public:
  using Adam::Adam;
  torch::Tensor step(LossClosure closure = nullptr) override;
};

class FusedAdamW final : public torch::optim::AdamW {
 public:
  using AdamW::AdamW;
  torch::Tensor step(LossClosure closure = nullptr) override;
};

class FusedSgd final : public torch::optim::SGD {
 public:
  using SGD::SGD;
  torch::Tensor step(LossClosure closure = nullptr) override;
};

}  // namespace bimetal::optim

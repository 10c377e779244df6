#pragma once
// A module's tensors by name.

#include <torch/csrc/api/include/torch/nn/module.h>

#include <string>
#include <vector>

namespace bimetal::parallel {

struct NamedTensor {
  std::string name;  ///< as libtorch gives it: "conv1.weight"
  torch::Tensor tensor;
};

/// In order of registration. A tensor registered in several places is listed once, under its first
/// name, so that it is sent and counted once. Undefined tensors are left out.
struct ModuleState {
  std::vector<NamedTensor> parameters;
  std::vector<NamedTensor> buffers;
};

ModuleState module_state(const torch::nn::Module& module);

std::vector<torch::Tensor> tensors_of(const std::vector<NamedTensor>& named);

}  // namespace bimetal::parallel

#pragma once
// Where a process computes, and in which type.

#include <torch/csrc/api/include/torch/types.h>

#include <string_view>

namespace bimetal::device {

struct Place {
  torch::Device device{torch::kCPU};
  torch::Dtype dtype = torch::kFloat32;
};

/// "float32" or "float64", as jobs and checkpoints name them.
inline torch::Dtype dtype_named(std::string_view name) {
  return name == "float64" ? torch::kFloat64 : torch::kFloat32;
}

}  // namespace bimetal::device

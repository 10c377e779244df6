#pragma once
// What flows through a model and out of a data set: tensors in an order that both sides know.

#include <torch/csrc/api/include/torch/types.h>

#include <cstdint>
#include <vector>

namespace bimetal::task {

/// A batch, a unit's inputs, or its outputs. Of a batch each tensor's first dimension is the
/// samples.
using Values = std::vector<torch::Tensor>;

/// How many samples a batch holds: the first dimension of its first tensor; 0 of no tensors.
std::int64_t samples_of(const Values& batch);

/// Samples `begin` … `end - 1`; shares their memory.
Values slice(const Values& batch, std::int64_t begin, std::int64_t end);

/// The same values on `device`; `non_blocking`: as torch::Tensor::to has it.
Values to_device(const Values& values, const torch::Device& device, bool non_blocking = false);

}  // namespace bimetal::task

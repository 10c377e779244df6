#pragma once
// All-reduces of sparse tensors, as embeddings' gradients are: every rank gathers what the others
// have and adds it up, so that this costs as much as a gathering of all their values.

#include <ATen/core/Tensor.h>

#include <functional>
#include <torch/csrc/distributed/c10d/Types.hpp>

#include "bimetal/c10d/backend.h"

namespace bimetal::c10d {

struct SparseReduction {
  FabricCall call;
  /// After the call: `tensor` becomes the coalesced result. Error(CallMismatch) where ranks have
  /// tensors of other shapes or types, naming the first that differs.
  std::function<void()> finish;
};

/// Sums and averages of COO tensors that are alike on all ranks but for their numbers of values.
/// Ranks are added in their order: every rank gets the same bits. Errors: Unsupported for other
/// operations and types.
SparseReduction sparse_reduction(const at::Tensor& tensor, const ::c10d::ReduceOp& op);

}  // namespace bimetal::c10d

#pragma once
// Reductions by bits, which the fabric does not compute: the ranks' values are gathered, and each
// rank that wants the result makes it. So they cost as much as a gathering.

#include <ATen/core/Tensor.h>

#include <functional>
#include <torch/csrc/distributed/c10d/Types.hpp>

#include "bimetal/c10d/backend.h"

namespace bimetal::c10d {

/// Whether `op` is BAND, BOR or BXOR on integers. (On bool BAND and BOR are minimum and maximum.)
bool is_bitwise(const ::c10d::ReduceOp& op, at::ScalarType type);

struct BitwiseReduction {
  FabricCall call;
  /// After the call: puts the result into `host`. Error(CallMismatch) where ranks have asked for
  /// different operations, naming the first that differs.
  std::function<void()> finish;
};

/// `host` is a contiguous CPU tensor of this rank's values, alike on all `size` ranks; `root`: who
/// gets the result, or -1 for all.
BitwiseReduction bitwise_reduction(const at::Tensor& host, const ::c10d::ReduceOp& op, int rank,
                                   int size, int root);

// All-reduces of sparse tensors, as embeddings' gradients are: every rank gathers what the others
// have and adds it up, so that this costs as much as a gathering of all their values.

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

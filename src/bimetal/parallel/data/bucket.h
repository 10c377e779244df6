#pragma once
// One bucket of gradients: flat memory that is summed in one operation.

#include <torch/csrc/api/include/torch/types.h>

#include <cstddef>
#include <cstdint>
#include <vector>

#include "bimetal/comm/compress/compression.h"
#include "bimetal/parallel/data/bucket_plan.h"

namespace bimetal::parallel {

/// Holds the gradients of plan.slots one after the other, each in row-major order whatever its
/// tensor's strides, and behind them one element per slot that is 1 where this rank has a gradient.
/// After the sum such an element is positive exactly if some rank had one. Not thread-safe.
class Bucket {
 public:
  /// `flat` is memory of elements(plan) elements of plan.dtype: on the host, where the fabric takes
  /// it, or on the device, for an island. The gradients' shapes are taken from `parameters`.
  Bucket(BucketPlan plan, const std::vector<torch::Tensor>& parameters, torch::Tensor flat);

  /// Elements of flat(): those of the gradients and one per slot.
  static std::int64_t elements(const BucketPlan& plan) {
    return plan.count + static_cast<std::int64_t>(plan.slots.size());
  }

  const std::vector<BucketPlan::Slot>& slots() const noexcept { return plan_.slots; }
  const torch::Tensor& flat() const noexcept { return flat_; }

  /// The slot's gradient, shaped like its parameter; shares the bucket's memory.
  const torch::Tensor& view(std::size_t slot) const { return views_[slot]; }

  /// The gradients as matrices, one per slot, of a parameter's first dimension and all the others;
  /// vectors have one row. What lies behind them in flat() counts ranks and must stay exact.
  std::vector<comm::Matrix> matrices() const;

  /// Whether this rank has a gradient for the slot; else what it adds there is 0.
  void note(std::size_t slot, bool used) { used_here_[slot] = used ? 1 : 0; }
  /// Once all slots have been noted: flat() may be summed.
  void close();

  /// After the sum: for each slot, whether any rank had a gradient for it. On a device that is
  /// waited for only where this rank lacks one.
  std::vector<bool> used_by_any() const;

 private:
  bool all_used_here() const;

  BucketPlan plan_;
  torch::Tensor flat_;
  torch::Tensor used_;  ///< the tail of flat_
  std::vector<torch::Tensor> views_;
  std::vector<double> used_here_;  ///< 0 or 1 per slot
};

}  // namespace bimetal::parallel

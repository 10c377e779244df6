#pragma once
// Computing a rank's share in pieces: a piece that stays in the caches is faster than the whole,
// and one that fits into memory beats one that does not.

#include <torch/csrc/api/include/torch/types.h>

#include <cstdint>
#include <functional>

#include "bimetal/data/dataset.h"

namespace bimetal::train {

/// Most samples that a rank computes at once.
class MicroBatch {
 public:
  /// `configured`: train.micro_batch; 0 takes what suits the device (kCpuDefault on a CPU, the
  /// whole share on an accelerator, whose kernels want large batches).
  MicroBatch(std::int64_t configured, const torch::Device& device);

  /// What a CPU computes fastest; bench figures in docs/balance.md.
  static constexpr std::int64_t kCpuDefault = 64;
  /// Smaller pieces are of no use: the per-call cost outweighs the samples.
  static constexpr std::int64_t kSmallest = 8;

  std::int64_t limit() const noexcept { return limit_; }

  /// After an allocation failed for a share of `batch`: halves the pieces. False if they are as
  /// small as they get.
  bool halve(std::int64_t batch);

  /// Number of pieces for a share, and the size of the largest: they differ by one at most.
  std::int64_t pieces(std::int64_t batch) const;

  /// Calls `compute(piece, last)` for each piece in order.
  void for_each(const data::Batch& batch,
                const std::function<void(const data::Batch& piece, bool last)>& compute) const;

 private:
  std::int64_t limit_;
};

}  // namespace bimetal::train

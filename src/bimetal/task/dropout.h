#pragma once
// Dropout (Srivastava et al. 2014) whose masks are a function of who is computed, and where in the
// model: the same on every device, for any shares and micro-batches, and when a unit is computed
// again.

#include <torch/csrc/api/include/torch/types.h>

#include <cstdint>

namespace bimetal::task {

/// Which heads there are: `first` and those behind it, `of` all. `of` 0: all are there.
struct HeadRange {
  std::int64_t first = 0, of = 0;
};

/// Each number of `x` is 0 with probability `p` (at least 0, less than 1), and ÷ (1 − p) otherwise.
/// `x` is [b, rows, columns] or [b, heads, rows, columns], of the b samples of this thread's
/// DrawScope in their order; `layer` tells the places of a model apart. Row and column decide, and
/// not their number: what is padded changes nothing before it. `first_row`: of a sample, where not
/// all are here. Rows × heads and columns are less than 2³². Errors: InvalidArgument outside of a
/// DrawScope, or in one of another number of samples.
torch::Tensor dropout_by_sample(const torch::Tensor& x, double p, std::int64_t layer,
                                HeadRange heads = {}, std::int64_t first_row = 0);

/// Which of them are 0: bool, [b, heads, rows, columns], as `sizes` says, on `device`.
torch::Tensor dropped(c10::IntArrayRef sizes, double p, std::int64_t layer,
                      const torch::Device& device, HeadRange heads = {},
                      std::int64_t first_row = 0);

/// The same by torch's own kernels, as devices other than the CPU compute it. For tests.
torch::Tensor dropped_by_kernels(c10::IntArrayRef sizes, double p, std::int64_t layer,
                                 const torch::Device& device, HeadRange heads = {},
                                 std::int64_t first_row = 0);

}  // namespace bimetal::task

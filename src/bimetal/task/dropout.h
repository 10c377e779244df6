#pragma once
// Dropout (Srivastava et al. 2014) whose masks are a function of who is computed, and where in the
// model: the same on every device, for any shares and micro-batches, and when a unit is computed
// again.

#include <torch/csrc/api/include/torch/types.h>

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "bimetal/base/philox.h"

namespace bimetal::task {

// The random numbers of a forward pass, and of a data set that changes its samples. They depend on
// the job's seed and the visit of each sample. So it makes no difference which rank computes a
// sample, in which micro-batch, or how often.

/// An epoch visits each sample once: (epoch, sample) tells one visit from all others as (step,
/// sample) would, and who computes for parameter servers knows it, too.
struct Draws {
  std::uint64_t seed = 0;
  std::int64_t epoch = 0;
  std::vector<std::int64_t> samples;  ///< numbers of a batch's samples, in its order

  static Draws of(std::uint64_t seed, std::int64_t epoch, std::span<const std::int64_t> samples) {
    return {seed, epoch, {samples.begin(), samples.end()}};
  }
  /// For samples that count for nothing: measurements.
  static Draws of_nobody(std::int64_t samples);
  /// Samples `begin` … `end - 1`, counted among those here. Error(InvalidArgument) if there are
  /// fewer.
  Draws slice(std::int64_t begin, std::int64_t end) const;
};

/// For the numbers that one place draws in an epoch; a sample's number belongs into the counter.
/// Places of a model count from 0; below are those outside of models.
PhiloxKey key_of(const Draws& draws, std::int64_t place);

inline constexpr std::int64_t kAugmentation = -1;  ///< the place of what data sets draw

/// While it lives, this thread's computations draw for these samples. Scopes nest. To compute
/// something again elsewhere: `auto draws = current_draws();` now, `DrawScope scope(draws);` then.
class DrawScope {
 public:
  explicit DrawScope(std::shared_ptr<const Draws> draws);
  explicit DrawScope(Draws draws);
  ~DrawScope();
  DrawScope(const DrawScope&) = delete;
  DrawScope& operator=(const DrawScope&) = delete;

 private:
  std::shared_ptr<const Draws> before_;
};

/// The draws of this thread's innermost scope; nullptr outside of all.
const std::shared_ptr<const Draws>& current_draws() noexcept;

/// How often anything on this thread has drawn for samples: dropout_by_sample() and its like.
std::uint64_t draws_made() noexcept;

/// Which heads there are: `first` and those behind it, `of` all. `of` 0: all are there.
struct HeadRange {
  std::int64_t first = 0, of = 0;
};

/// Each number of `x` is 0 with probability `p` (at least 0, less than 1), and ÷ (1 − p) otherwise.
/// `x` is [b, rows, columns] or [b, heads, rows, columns], of the b samples of this thread's
/// DrawScope in their order; `layer` tells the places of a model apart. Row and column decide, and
/// not their number: padding changes nothing before it. `first_row`: the first one here of a
/// sample, if not all are here. Rows × heads and columns are less than 2³². Errors: InvalidArgument
/// outside of a DrawScope, or in one of another number of samples.
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

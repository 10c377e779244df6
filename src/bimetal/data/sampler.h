#pragma once
// Which sample goes to which rank. Every rank holds the same sampler and calls it with the same
// shares; an epoch visits each sample exactly once, whatever the shares do. No libtorch, no I/O.

#include <cstdint>
#include <random>
#include <span>
#include <vector>

namespace bimetal::data {

/// A place in the order of samples.
struct SamplerPosition {
  std::int64_t epoch = 0;   ///< from 0
  std::int64_t offset = 0;  ///< samples of this epoch already handed out

  friend bool operator==(const SamplerPosition&, const SamplerPosition&) = default;
};

/// Deals out each epoch's samples in an order of its own. Use from one thread.
class EpochSampler {
 public:
  /// The permutation depends on (dataset_size, seed, epoch) alone and is the same on every
  /// platform. `weights`: the cost of each sample (its tokens), at least 1, the same on all ranks;
  /// none: 1 each. `group`: so many samples that follow each other in a step go to one rank
  /// together (the step's last ones may be fewer); only without weights. Error(InvalidArgument) if
  /// dataset_size < 1 or weights or group don't fit.
  EpochSampler(std::int64_t dataset_size, std::uint64_t seed, bool shuffle = true,
               std::vector<std::int64_t> weights = {}, std::int64_t group = 1);

  std::uint64_t seed() const noexcept { return seed_; }   ///< of the order
  std::int64_t group() const noexcept { return group_; }  ///< samples that stay together

  /// Samples left in the current epoch.
  std::int64_t remaining() const noexcept;

  /// The next Σ shares samples (or the rest of the epoch: the shares are then scaled down in
  /// proportion, see balance::scale_shares), dealt to the ranks: rank r gets the r-th run, of whole
  /// groups. Advances; at the epoch's end the next call begins a new epoch. Error(InvalidArgument)
  /// for no shares, a negative one, or Σ shares = 0.
  struct Step {
    std::int64_t epoch = 0;             ///< of these samples, from 0
    std::int64_t total = 0;             ///< samples of this step over all ranks
    std::vector<std::int64_t> counts;   ///< per rank; Σ = total
    std::vector<std::int64_t> weights;  ///< per rank: Σ of its samples'
    std::vector<std::int64_t> indices;  ///< this step's samples, rank after rank

    /// The weight of all ranks' samples.
    std::int64_t weight() const;
    /// Rank `rank`'s run of indices. Error(InvalidArgument) if there is no such rank.
    std::span<const std::int64_t> of_rank(int rank) const;
  };
  /// The step after this position: see Step.
  Step next(std::span<const std::int64_t> shares);

  /// The next `samples` samples (or the rest of the epoch), with any shares, dealt out so that the
  /// ranks' weights are as near to the shares' proportions as balance::deal_out comes. Without
  /// weights it is next() with these shares scaled to `samples`. Errors as there, and for samples <
  /// 1.
  Step deal(std::span<const std::int64_t> shares, std::int64_t samples);

  /// The average weight of so many samples over the dataset, rounded.
  std::int64_t mean_weight(std::int64_t samples) const noexcept;

  /// {epoch, offset}; the offset equals the dataset's size between two epochs.
  SamplerPosition position() const noexcept { return position_; }
  /// Continues from a checkpoint, or repeats a step. Error(InvalidArgument) if out of range.
  void seek(SamplerPosition position);

 private:
  void order_epoch();
  Step take(std::int64_t samples);
  std::vector<std::int64_t> split(std::span<const std::int64_t> shares, std::int64_t samples) const;

  std::int64_t size_;
  std::uint64_t seed_;
  bool shuffle_;
  std::vector<std::int64_t> weights_;  ///< per sample; empty: all are alike
  std::int64_t group_;
  SamplerPosition position_;
  std::int64_t ordered_epoch_ = -1;  ///< the epoch that order_ is of
  std::vector<std::int64_t> order_;
};

// Random whole numbers that are the same with every standard library: its engines are specified to
// the bit, its distributions are not.

/// Uniform in 0…bound−1; bound is at least 1. Numbers below 2^64 mod bound are drawn again, which
/// leaves whole rounds of 0…bound−1.
inline std::uint64_t uniform_below(std::uint64_t bound, std::mt19937_64& engine) {
  const std::uint64_t uneven = (0 - bound) % bound;
  std::uint64_t drawn = engine();
  while (drawn < uneven) drawn = engine();
  return drawn % bound;
}

}  // namespace bimetal::data

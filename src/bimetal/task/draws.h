#pragma once
// What a forward pass, and a data set that changes its samples, draw at random depends on: the
// job's seed and the visit of each sample, so that neither the rank that computes a sample, nor the
// micro-batch in which it does, nor how often, makes a difference.

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "bimetal/base/philox.h"

namespace bimetal::task {

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
  /// Samples `begin` … `end - 1`, of those here. Error(InvalidArgument) if there are fewer.
  Draws slice(std::int64_t begin, std::int64_t end) const;
};

/// For the numbers that one place draws in an epoch; a sample's number belongs into the counter.
/// Places of a model count from 0; below are those outside of models.
PhiloxKey key_of(const Draws& draws, std::int64_t place);

inline constexpr std::int64_t kAugmentation = -1;  ///< the place of what data sets draw

/// While it lives, what this thread computes draws for these samples. Scopes nest. To compute
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

/// Of this thread's innermost scope; nullptr outside of all.
const std::shared_ptr<const Draws>& current_draws() noexcept;

}  // namespace bimetal::task

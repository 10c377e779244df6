#pragma once
// What is learnt from: images, tokens, the user's own.

#include <cstdint>
#include <span>
#include <vector>

#include "bimetal/task/values.h"

namespace bimetal::task {

/// Samples 0 … size() - 1. Immutable while it is used, and the same on every rank. batch() is
/// called by several threads at once: the next batch is built beside the computation.
class Dataset {
 public:
  virtual ~Dataset() = default;

  /// At least 1.
  virtual std::int64_t size() const = 0;

  /// How much a sample counts in the mean that is minimised, and about what it costs to compute: 1,
  /// or its number of tokens with a target. At least 1. Every rank knows every sample's, so that
  /// the weight of a whole step is known without a message.
  virtual std::int64_t weight(std::int64_t /*sample*/) const { return 1; }

  /// The samples in that order, on the CPU: each tensor's first dimension is theirs (there may be
  /// none of them). Sequences are padded to one length; what is padded must not count in the loss.
  /// Built for training, it is so in a DrawScope (draws.h), from which a data set that changes its
  /// samples at random draws; outside of one it gives them as they are.
  virtual Values batch(std::span<const std::int64_t> samples) const = 0;
};

/// Each sample's weight; empty where all weigh 1.
std::vector<std::int64_t> weights_of(const Dataset& dataset);

/// Of samples `begin` … `end - 1`.
std::int64_t weight_of(const Dataset& dataset, std::int64_t begin, std::int64_t end);

/// About what a sample weighs, by the first of them. At least 1.
std::int64_t typical_weight(const Dataset& dataset);

/// Samples `begin` … `end - 1` in a batch.
Values batch_of(const Dataset& dataset, std::int64_t begin, std::int64_t end);

}  // namespace bimetal::task

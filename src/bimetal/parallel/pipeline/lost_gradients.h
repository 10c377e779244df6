#pragma once
// Error feedback of gradients between stages. The loss of encoding one micro-batch is added to the
// next one, and from the last one of a step to the next step (lazy error propagation: Song et al.,
// "Optimus-CC", ASPLOS 2023).

#include <torch/csrc/api/include/torch/types.h>

#include <compare>
#include <cstddef>
#include <map>

#include "bimetal/comm/compress/compression.h"

namespace bimetal::parallel::pipeline {

/// Of one rank. Keeps as much as the largest micro-batch's gradients of each place, in float32.
/// Use from one thread.
class LostGradients {
 public:
  struct Place {
    int piece = 0;          ///< that computes the gradient
    std::size_t value = 0;  ///< which of those that it got
    friend auto operator<=>(const Place&, const Place&) = default;
  };

  /// Adds what earlier ones of the place have lost to `floats` (float32, contiguous, on the CPU,
  /// the caller's own) and encodes that. Micro-batches may have unequal numbers of samples (their
  /// first dimension): what a smaller one has no sample for waits. Where they differ in other
  /// dimensions, it is forgotten. So is what is not finite.
  torch::Tensor encode(comm::Scheme scheme, const Place& place, torch::Tensor floats);

 private:
  std::map<Place, torch::Tensor> lost_;
};

}  // namespace bimetal::parallel::pipeline

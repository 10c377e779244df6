#pragma once
// Where to cut a model into stages for devices of unlike speed and memory.

#include <cstddef>
#include <functional>
#include <vector>

namespace bimetal::parallel::schedule {

/// Whether what a stage needs fits into its memory, activations of all micro-batches that it has at
/// a time included, where its units begin with `begin`: for every end from begin + 1 on.
using FittingEnds = std::function<std::vector<bool>(std::size_t stage, std::size_t begin)>;

/// What is to be cut: units in their order, for stages in their order.
struct CutProblem {
  /// seconds[stage][unit]: forward and backward of a micro-batch on that stage's device. All of one
  /// length, at least as many units as stages.
  std::vector<std::vector<double>> seconds;
  /// send[stage][unit], of each stage but the last: seconds in which a micro-batch crosses the cut
  /// behind that unit to the next stage, and its gradient comes back. Empty: none.
  std::vector<std::vector<double>> send = {};
  FittingEnds fitting = {};  ///< empty: nothing is known of memory
  int micro_batches = 1;
};

struct Cut {
  std::vector<std::size_t> begins;  ///< the unit that each stage begins with; the first is 0
  double seconds = 0;  ///< (m − 1) · max tᵢ + Σ tᵢ with it: simulate.h's plain_bound
};

/// The cut with the least such step, each stage having at least one unit: for every longest stage
/// that may be, from the shortest on, dynamic programming over units finds the least sum. Exact.
/// Errors: InvalidArgument for fewer units than stages, or lists of unequal length, those that
/// `fitting` gives included; OutOfMemory if no cut fits.
Cut cut(const CutProblem& problem);

}  // namespace bimetal::parallel::schedule

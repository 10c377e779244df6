#pragma once
// Where to cut a model into stages for devices of unlike speed and memory.

#include <cstddef>
#include <vector>

namespace bimetal::parallel::schedule {

/// What is to be cut: units in their order, for stages in their order.
struct CutProblem {
  /// seconds[stage][unit]: forward and backward of a micro-batch on that stage's device. All of one
  /// length, at least as many units as stages.
  std::vector<std::vector<double>> seconds;
  /// send[unit]: seconds in which a micro-batch crosses the cut behind that unit, both ways. Empty:
  /// none.
  std::vector<double> send = {};
  /// bytes[stage][unit]: what the unit needs there, activations of all micro-batches that the stage
  /// has at a time included. Empty: nothing is known of memory.
  std::vector<std::vector<double>> bytes = {};
  std::vector<double> memory = {};  ///< of each stage, if `bytes` is given
  int micro_batches = 1;
};

struct Cut {
  std::vector<std::size_t> begins;  ///< the unit that each stage begins with; the first is 0
  double seconds = 0;  ///< (m − 1) · max tᵢ + Σ tᵢ with it: simulate.h's plain_bound
};

/// The cut with the least such step, each stage having at least one unit: for every longest stage
/// that may be, from the shortest on, dynamic programming over units finds the least sum. Exact.
/// Errors: InvalidArgument for fewer units than stages, or lists of unequal length; OutOfMemory if
/// no cut fits.
Cut cut(const CutProblem& problem);

}  // namespace bimetal::parallel::schedule

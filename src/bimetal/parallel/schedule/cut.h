#pragma once
// Cuts a model into stages for devices of unlike speed and memory.

#include <cstddef>
#include <functional>
#include <vector>

namespace bimetal::parallel::schedule {

/// Whether a stage fits into its memory, including activations of all micro-batches under way, for
/// units from `begin` to every end from begin + 1 on. With several chunks each of its pieces is
/// taken to be like that one.
using FittingEnds = std::function<std::vector<bool>(std::size_t stage, std::size_t begin)>;

/// The problem: units in their order, to be cut for stages in their order.
struct CutProblem {
  /// seconds[stage][unit]: forward and backward of a micro-batch on that stage's device. All of one
  /// length, at least as many units as pieces.
  std::vector<std::vector<double>> seconds;
  /// send[stage][unit], for each stage but the last: seconds in which a micro-batch crosses the cut
  /// behind that unit to the next stage, and its gradient comes back. With several chunks also for
  /// the last stage, to the first. Empty: none.
  std::vector<std::vector<double>> send = {};
  FittingEnds fitting = {};  ///< empty: nothing is known of memory
  int micro_batches = 1;
  int chunks = 1;  ///< pieces of each stage, in schedule.h's order
};

struct Cut {
  std::vector<std::size_t> begins;  ///< the unit that each piece begins with; the first is 0
  double seconds = 0;               ///< of a step with it: simulate.h's plain_bound
};

/// The cut with the least such step, each piece having at least one unit: for every longest piece
/// that may be, from the shortest on, dynamic programming over units finds the least sum. With one
/// chunk exact. With several chunks the stages must not be long, whatever each of their pieces is.
/// It starts from the best cut into short pieces, and moves a unit, or two, from one piece to
/// another while that is better. Errors: InvalidArgument for fewer units than pieces, or lists of
/// unequal length, those that `fitting` gives included; OutOfMemory if no cut fits.
Cut cut(const CutProblem& problem);

}  // namespace bimetal::parallel::schedule

#pragma once
// Recomputation: activations inside of a model are dropped after forward and computed once more
// when backward comes to them, which takes time and saves memory (Chen et al., "Training Deep Nets
// with Sublinear Memory Cost", 2016).

#include <cstddef>
#include <memory>
#include <vector>

#include "bimetal/task/unit.h"

namespace bimetal::task {

/// A model whose units are run in groups. Each group but the last keeps only its inputs for
/// backward. Backward begins with the last group, so dropping its activations would gain nothing.
///
/// Gradients are bit for bit those of run_units(): random numbers, autocast and buffers are in the
/// second pass as they were in the first. (The exception is a tensor in three units or more, two of
/// them in one group: its parts are added up in another order.) A group's gradients come together,
/// the last group's first. So hooks on parameters fire while groups before it are still to be
/// computed. A tensor that several groups use gets its gradient once, when all parts are there.
///
/// A cheap handle. Use from one thread; backward calls units and `before_use` on its own.
class Segments {
 public:
  /// `at_once`: units in a group; 0: nothing is recomputed.
  Segments(const Model& model, std::size_t at_once, BeforeUse before_use = {});

  /// As run_units(); the same where gradients are off. Errors: Unsupported for a unit that changes
  /// its inputs in place. Backward has its own: InvalidArgument for a unit that uses a trained
  /// tensor which it does not list, Unsupported for derivatives of derivatives.
  Values run(Values inputs) const;

  /// The number of groups whose activations are dropped.
  std::size_t recomputed() const noexcept { return groups_.size() - 1; }

 private:
  struct Group;
  class Function;

  std::vector<std::shared_ptr<const Group>> groups_;
};

}  // namespace bimetal::task

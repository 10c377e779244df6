#pragma once
// Callbacks at the boundaries of a unit, in forward and backward.

#include <functional>

#include "bimetal/task/unit.h"

namespace bimetal::parallel::shard {

struct UnitBoundaries {
  std::function<void()> before_forward, after_forward;
  std::function<void()> before_backward;
  /// Once the gradients of the unit's inputs are there; not called where none of them needs one.
  std::function<void()> after_backward;
};

/// The same values, the tensors of which need a gradient; `call` comes in backward, once those of
/// all of them are there.
task::Values at_backward(const task::Values& values, std::function<void()> call);

/// The same unit, in which they are called: in backward, recomputed or not, by identity functions
/// around it. Exceptions pass through. Use from one thread.
task::Unit fence(task::Unit unit, UnitBoundaries boundaries);

}  // namespace bimetal::parallel::shard

#pragma once
// How large a task's model is, before anybody makes one to train.

#include "bimetal/task/task.h"

namespace bimetal::train {

struct ModelSize {
  double elements = 0;    ///< of its parameters
  bool by_units = false;  ///< it can be made unit by unit, so that it is never whole
};

/// Makes a model whose parameters have no memory, or one that has, where it is not made by units.
ModelSize size_of_model(const task::Task& task);

}  // namespace bimetal::train

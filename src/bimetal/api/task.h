#pragma once
// What a program brings of its own: docs/tasks.md.

#include "bimetal/task/task.h"
#include "bimetal/task/unit.h"

namespace bimetal {

using task::Dataset;
using task::Metric;
using task::Model;
using task::Task;
using task::Unit;
using task::Values;

}  // namespace bimetal

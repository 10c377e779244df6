#pragma once
// How much a task's model computes.

#include <vector>

#include "bimetal/task/catalog/job_task.h"

namespace bimetal::task {

/// Operations of each unit's forward for a sample of the training data
/// (models/language/operations.h); empty where that is not known, as it is of language models
/// alone.
std::vector<double> unit_operations(const JobTask& task);

}  // namespace bimetal::task

#pragma once
// Any task, but that a part of its training data is held out.

#include <memory>

#include "bimetal/job/job_config.h"
#include "bimetal/task/catalog/job_task.h"

namespace bimetal::task {

/// `whole` with data.validation of its training samples, chosen by data.validation_seed, as its
/// validation(); the rest is its training(), of which data.bootstrap_seed draws. Its facts() are of
/// all of the data: which part is held out follows from the job. Error(InvalidArgument) for fewer
/// than two training samples.
std::shared_ptr<const JobTask> hold_out(std::shared_ptr<const JobTask> whole,
                                        const job::DataConfig& config);

}  // namespace bimetal::task

#pragma once
// Which settings cannot work together: the one place that refuses them.

#include <span>

#include "bimetal/job/job_config.h"
#include "bimetal/job/worker_spec.h"

namespace bimetal::job {

/// Error(Unsupported) that names the two settings and says why they do not go together, and what
/// does. `workers`: those that are known here; none stands for one that takes all from the job.
void require_possible(const JobConfig& job, std::span<const WorkerSpec> workers);

/// Whether require_possible() refuses nothing.
bool is_possible(const JobConfig& job, std::span<const WorkerSpec> workers = {});

/// Whether workers may come and go in such a job: elastic.min_workers alone would be refused if
/// not.
bool may_be_elastic(const JobConfig& job);

}  // namespace bimetal::job

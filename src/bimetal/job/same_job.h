#pragma once
// Ranks may have been started by hand, each with a job file of its own. What must be equal for them
// to work together is compared before anything else; their data follows in shared_data.h.

#include <chrono>
#include <string>
#include <utility>
#include <vector>

#include "bimetal/comm/group.h"
#include "bimetal/job/job_config.h"

namespace bimetal::job {

/// Names of settings and their values.
using JobFacts = std::vector<std::pair<std::string, std::string>>;

/// What all processes of a job must have alike.
JobFacts facts_of(const JobConfig& job);

/// Error(CallMismatch), on every rank, names the first key that differs from rank 0's, both values
/// and the rank. Collective.
void require_same_job(comm::Group group, const JobConfig& job, std::chrono::milliseconds timeout);

/// The same of what ranks have found out besides: texts like "training data = 500 samples", of
/// which all have as many.
void require_same_facts(comm::Group group, const std::vector<std::string>& facts,
                        std::chrono::milliseconds timeout);

}  // namespace bimetal::job

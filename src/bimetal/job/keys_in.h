#pragma once
// A job's keys, one by one.

#include <set>
#include <string>

#include "bimetal/job/job_config.h"

namespace bimetal::job {

/// Each with its value as one line, "section.key=value": what --set takes.
std::set<std::string> keys_in(const JobConfig& job);

}  // namespace bimetal::job

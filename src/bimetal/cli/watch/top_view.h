#pragma once
// A job's status as a person reads it.

#include <string>
#include <vector>

#include "bimetal/monitor/status.h"

namespace bimetal::cli {

/// What `bimetal top` shows, line by line; control characters of what the job says are taken out.
std::vector<std::string> status_lines(const monitor::Status& status);

}  // namespace bimetal::cli

#pragma once
// bimetal train --profile FIRST:LAST: docs/profile.md.

#include <string>

#include "bimetal/cli/terminal.h"
#include "bimetal/job/job_config.h"
#include "bimetal/train/profile/profile.h"

namespace bimetal::cli {

/// Errors: InvalidArgument for anything but two numbers of steps, and for jobs with parameter
/// servers.
void require_profile(const std::string& steps, const job::JobConfig& job);

/// The path of the trace: as named, else beside the report, else with the checkpoints, else here.
std::string trace_of(const std::string& named, const std::string& report,
                     const job::JobConfig& job);

/// For rank 0. `steps`, "10:20", has been checked; the tables go to `terminal`, which must outlive
/// it.
train::ProfileRequest profile_request(const std::string& steps, const std::string& trace,
                                      Terminal& terminal);

}  // namespace bimetal::cli

#pragma once
// The monitor of the process that leads a job.

#include "bimetal/cli/terminal.h"
#include "bimetal/job/job_config.h"
#include "bimetal/monitor/monitor.h"

namespace bimetal::cli {

/// What [monitor] asks for, with this job's token.
monitor::MonitorOptions monitor_options(const job::MonitorConfig& config);

/// Says where it is, if it listens.
void announce(const monitor::Monitor& monitor, Terminal& terminal);

}  // namespace bimetal::cli

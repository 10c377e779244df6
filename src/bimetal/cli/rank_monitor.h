#pragma once
// The monitor of the process that leads a job.

#include "bimetal/cli/terminal.h"
#include "bimetal/monitor/monitor.h"
#include "bimetal/train/job.h"

namespace bimetal::cli {

/// What [monitor] asks for, with this job's token.
monitor::MonitorOptions monitor_options(const train::MonitorConfig& config);

/// Says where it is, if it listens.
void announce(const monitor::Monitor& monitor, Terminal& terminal);

}  // namespace bimetal::cli

#pragma once
// What every launch has in common, whoever lets its ranks meet.

#include <vector>

#include "bimetal/launch/ssh/host_launcher.h"

namespace bimetal::cli {

/// In this folder, with this process's settings of Bimetal; without hosts, token and command.
launch::HostsPlan plan_from_here();

/// Tells the user of a failure, and returns the exit status. `ranks`: in all.
int told_status(const launch::HostsResult& result, int ranks);

}  // namespace bimetal::cli

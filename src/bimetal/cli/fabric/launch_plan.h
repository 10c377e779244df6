#pragma once
// What every launch has in common, whoever lets its ranks meet.

#include <vector>

#include "bimetal/launch/ssh/host_launcher.h"

namespace bimetal::cli {

/// In this folder, with this process's settings of Bimetal; without hosts, token and command.
launch::HostsPlan plan_from_here();

/// Runs the ranks of a plan that knows its hosts, tells the user how they have ended, and returns
/// the exit status.
int run_and_tell(const launch::HostsPlan& plan, launch::SignalWatch& signals);

}  // namespace bimetal::cli

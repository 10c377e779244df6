#pragma once
// A job whose ranks are all on this machine.

#include <functional>

#include "bimetal/cli/train/local_ranks.h"

namespace bimetal::cli {

/// Runs the job to its end and returns the exit status; nothing of it is left running. Throws Error
/// with the cause if it failed. A request to stop that came before is heeded, too;
/// `on_stop_request` tells the user what will happen.
int run_local_job(const LocalRanks& ranks, launch::SignalWatch& signals,
                  const std::function<void()>& on_stop_request = announce_stop);

}  // namespace bimetal::cli

#pragma once
// Ranks that die before the others have met them: their launcher tells those who wait.

#include "bimetal/cli/train/local_ranks.h"
#include "bimetal/rendezvous/store.h"

namespace bimetal::cli {

/// Has the launcher of `plan`, made of `ranks`, leave word in the job's store of each process of it
/// that fails, for whoever waits for it there: ranks to meet it, or those who look for a parameter
/// server (withdraw_failed_servers). Ranks of a mesh get the name of their place in it. `store` must
/// outlive the launch.
void tell_of_failed_ranks(launch::LaunchPlan& plan, const LocalRanks& ranks,
                          rendezvous::Store& store);

}  // namespace bimetal::cli

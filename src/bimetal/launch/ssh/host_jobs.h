#pragma once
// What each host of a job gets to do: the plan of a launch cut into one part per host. Pure.

#include <vector>

#include "bimetal/launch/agent/agent_message.h"
#include "bimetal/launch/ssh/host_launcher.h"

namespace bimetal::launch {

/// The parts in the order of plan.hosts. `master` is where the ranks meet (port 0: the first host
/// chooses one), `here[h]` whether host h is this machine.
std::vector<AgentJob> jobs_of_hosts(const HostsPlan& plan, const net::Endpoint& master,
                                    const std::vector<bool>& here);

}  // namespace bimetal::launch

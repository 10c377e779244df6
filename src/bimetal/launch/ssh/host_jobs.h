#pragma once
// What each host of a job gets to do: the plan of a launch cut into one part per host. Pure.

#include <string>
#include <vector>

#include "bimetal/launch/agent/agent_message.h"
#include "bimetal/launch/ssh/host_launcher.h"

namespace bimetal::launch {

/// The parts in the order of plan.hosts. `master` is where the ranks meet (port 0: the first host
/// chooses one), `here[h]` whether host h is this machine.
std::vector<AgentJob> jobs_of_hosts(const HostsPlan& plan, const net::Endpoint& master,
                                    const std::vector<bool>& here);

struct MeetingHost {
  std::string name;     ///< as the user calls it, without "user@"
  std::string address;  ///< at which ssh reached it; may be empty
  bool here = false;    ///< it is this machine
};

/// `hosts` in the order of their ranks. With this machine alone, loopback. The first host's address
/// as ssh reached it, or else its name; if it is this machine, the address by which it reaches the
/// first of the others. Error(System) if no network leads there.
std::string meeting_address(const std::vector<MeetingHost>& hosts);

}  // namespace bimetal::launch

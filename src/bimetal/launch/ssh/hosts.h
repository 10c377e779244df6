#pragma once
// The hosts of a job as its launcher sees them: connected, made ready together, and told to start
// their ranks. The plan is cut into one part for each host.

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "bimetal/base/deadline.h"
#include "bimetal/launch/agent/agent_message.h"
#include "bimetal/launch/ssh/host_connection.h"
#include "bimetal/launch/ssh/host_launcher.h"

namespace bimetal::launch {

struct Host {
  HostRanks ranks;
  std::unique_ptr<HostConnection> connection;
  std::optional<AgentHello> hello = {};
  bool ready = false, reached = false, lost = false;
  int running = 0;                                        ///< ranks
  std::optional<Deadline::Clock::time_point> asked = {};  ///< since when without an answer
};

/// Use from one thread. Both arguments must outlive it.
class Hosts {
 public:
  /// Starts the agents.
  Hosts(const HostsPlan& plan, SignalWatch& signals);
  /// No agent is left behind, and none leaves a rank behind.
  ~Hosts();
  Hosts(const Hosts&) = delete;
  Hosts& operator=(const Hosts&) = delete;

  /// False if the user gave up meanwhile. `turn` waits for news of the hosts and takes it in.
  /// Errors: those of run_on_hosts.
  bool get_ready(const std::function<void()>& turn);
  /// Whether the message was about that; if not, it is not looked at.
  bool take(Host& host, const Message& message);
  void start();

  int running() const;  ///< ranks
  void say_to_all(AgentMessage kind, std::int64_t number);
  std::vector<Host>& list() { return hosts_; }
  const net::Endpoint& master() const { return master_; }  ///< once they are ready

  template <typename Condition>
  bool all(const Condition& condition) const {
    for (const auto& host : hosts_) {
      if (!condition(host)) return false;
    }
    return true;
  }

 private:
  bool wait_for(const char* what, Deadline deadline, const std::function<void()>& turn,
                bool (*done)(const Host&));
  void send_jobs();
  void greet(Host& host, AgentHello hello);
  /// Whether the ranks meet there.
  bool is_first(const Host& host) const { return host.ranks.first_rank == 0; }

  const HostsPlan& plan_;
  SignalWatch& signals_;
  std::vector<Host> hosts_;
  net::Endpoint master_;
};

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

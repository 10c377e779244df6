#include "bimetal/launch/ssh/host_jobs.h"

#include <algorithm>

#include "bimetal/net/endpoint.h"

namespace bimetal::launch {
namespace {

NamedValues environment_of_rank(const HostsPlan& plan, const std::vector<int>& counts, int host,
                                int local_rank) {
  auto variables = rank_variables(place_of(counts, host, local_rank));
  const auto& name = plan.hosts[static_cast<std::size_t>(host)].name;
  variables.insert(variables.end(), {{"HOROVOD_HOSTNAME", without_user(name)},
                                     {"BIMETAL_TOKEN", std::string(plan.token.text())},
                                     {"BIMETAL_TOKEN_FILE", ""}});
  return variables;
}

/// Any would do: nothing is sent.
constexpr std::uint16_t kPortOfSsh = 22;

std::string address_of_host(const MeetingHost& host) {
  return host.address.empty() ? host.name : host.address;
}

}  // namespace

std::vector<AgentJob> jobs_of_hosts(const HostsPlan& plan, const net::Endpoint& master,
                                    const std::vector<bool>& here) {
  std::vector<int> counts;
  for (const auto& host : plan.hosts) counts.push_back(host.count);
  std::vector<AgentJob> jobs;
  for (int number = 0; const auto& host : plan.hosts) {
    AgentJob& job = jobs.emplace_back();
    job.command = plan.command;
    job.directory = plan.directory;
    job.directory_is_needed = plan.directory_is_needed;
    job.environment = plan.environment;
    job.is_first_host = number == 0;
    job.master = master;
    job.silence_ms = here[static_cast<std::size_t>(number)] ? 0 : plan.silence.count();
    for (int i = 0; i < host.count; ++i) {
      job.ranks.push_back({host.first_rank + i, environment_of_rank(plan, counts, number, i)});
    }
    ++number;
  }
  return jobs;
}

std::string meeting_address(const std::vector<MeetingHost>& hosts) {
  const auto elsewhere =
      std::find_if(hosts.begin(), hosts.end(), [](const auto& host) { return !host.here; });
  if (elsewhere == hosts.end()) return "127.0.0.1";
  if (!hosts.front().here) return address_of_host(hosts.front());
  return net::address_towards({address_of_host(*elsewhere), kPortOfSsh});
}

}  // namespace bimetal::launch

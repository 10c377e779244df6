#include "bimetal/launch/ssh/hosts.h"

#include <fmt/format.h>

#include <algorithm>

#include "bimetal/launch/port_check.h"
#include "bimetal/net/endpoint.h"

namespace bimetal::launch {
namespace {

using std::chrono::milliseconds;

/// For agents and ssh to follow their ranks.
constexpr milliseconds kAfterHangUp{5'000};

NamedValues environment_of_rank(const HostsPlan& plan, const std::vector<int>& counts, int host,
                                int local_rank) {
  auto variables = rank_variables(place_of(counts, host, local_rank));
  const auto& name = plan.hosts[static_cast<std::size_t>(host)].name;
  variables.emplace_back("HOROVOD_HOSTNAME", without_user(name));
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
    job.environment.insert(
        job.environment.end(),
        {{"BIMETAL_TOKEN", std::string(plan.token.text())}, {"BIMETAL_TOKEN_FILE", ""}});
    job.is_first_host = number == 0;
    job.master = master;
    job.may_restart = plan.restarts > 0;
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

Hosts::Hosts(const HostsPlan& plan, SignalWatch& signals) : plan_(plan), signals_(signals) {
  if (plan_.others != nullptr) {
    const auto& ranks = plan_.hosts.at(plan_.own);
    hosts_.push_back({ranks, std::make_unique<HostConnection>(ranks.name, true, plan_.ssh)});
    return;
  }
  for (const auto& ranks : plan_.hosts) {
    const bool here = ranks.name.find('@') == std::string::npos && is_this_machine(ranks.name);
    hosts_.push_back({ranks, std::make_unique<HostConnection>(ranks.name, here, plan_.ssh)});
  }
}

Hosts::~Hosts() {
  for (auto& host : hosts_) host.connection->hang_up();
  const auto deadline = Deadline::after(kAfterHangUp);
  const auto done = [](const Host& host) { return host.lost || host.connection->ended(); };
  while (!all(done) && !deadline.expired()) {
    try {
      for (auto& host : hosts_) host.connection->exchange(true);
    } catch (const Error&) {
      // Its last words are ignored: it is killed below if it does not end.
    }
    signals_.pause(milliseconds(10));
  }
}

int Hosts::running() const {
  int count = 0;
  for (const auto& host : hosts_) count += host.running;
  return count;
}

bool Hosts::get_ready(const std::function<void()>& turn) {
  const auto deadline = Deadline::after(plan_.start_timeout);
  if (!wait_for("answer", deadline, turn,
                [](const Host& host) { return host.hello.has_value(); })) {
    return false;
  }
  send_jobs();
  if (!wait_for("get ready", deadline, turn, [](const Host& host) { return host.ready; }))
    return false;
  for (auto& host : hosts_) {
    host.reached = is_first(host);
    if (!host.reached) host.connection->say({AgentMessage::reach, -1, net::to_string(master_)});
  }
  return wait_for("reach the first host", deadline, turn,
                  [](const Host& host) { return host.reached; });
}

bool Hosts::wait_for(const char* what, Deadline deadline, const std::function<void()>& turn,
                     bool (*done)(const Host&)) {
  while (!all(done)) {
    turn();
    if (signals_.stop_requests() > 0) return false;
    for (const auto& host : hosts_) {
      if (!done(host) && host.connection->ended()) throw host.connection->explain();
      if (!done(host) && deadline.expired()) {
        throw Error(ErrorCode::Timeout,
                    fmt::format("host {} did not {} within {} s; try: ssh {} true. "
                                "(--start-timeout gives it longer)",
                                host.ranks.name, what, plan_.start_timeout.count() / 1000,
                                host.ranks.name));
      }
    }
  }
  return true;
}

void Hosts::send_jobs() {
  std::vector<MeetingHost> meeting_hosts;
  std::vector<bool> here;
  for (const auto& host : hosts_) {
    here.push_back(host.connection->here());
    meeting_hosts.push_back({without_user(host.ranks.name), host.hello->address, here.back()});
  }
  master_ = {plan_.master_host.empty() ? meeting_address(meeting_hosts) : plan_.master_host,
             plan_.master_port};
  here.resize(plan_.hosts.size(), true);  // other launchers' are none of this one's
  const auto jobs = jobs_of_hosts(plan_, master_, here);
  for (std::size_t i = 0; i < hosts_.size(); ++i) {
    hosts_[i].connection->say({AgentMessage::job, -1, encode_job(jobs[plan_.own + i])});
  }
}

void Hosts::start() {
  for (auto& host : hosts_) {
    host.running = host.ranks.count;
    host.connection->say({AgentMessage::start, -1, encode_number(master_.port)});
  }
  if (plan_.hosts.size() == 1) return;
  std::string who;
  for (const auto& ranks : plan_.hosts) {
    who += fmt::format("{}{} {}-{}", who.empty() ? "" : ", ", ranks.name, ranks.first_rank,
                       ranks.first_rank + ranks.count - 1);
  }
  plan_.note(fmt::format("ranks {}; they meet at {}", who, net::to_string(master_)));
}

void Hosts::greet(Host& host, AgentHello hello) {
  if (hello.version != plan_.version) {
    throw Error(ErrorCode::ProtocolMismatch,
                fmt::format("host {} has Bimetal {} and this one {}; install the same version on "
                            "all hosts, or name another by --remote-bimetal PATH",
                            host.ranks.name, hello.version, plan_.version));
  }
  host.hello = std::move(hello);
}

bool Hosts::take(Host& host, const Message& message) {
  switch (message.kind) {
    case AgentMessage::hello: greet(host, decode_hello(message.text)); return true;
    case AgentMessage::ready:
      host.ready = true;
      if (is_first(host)) {
        master_.port = static_cast<std::uint16_t>(decode_number(message.text));
      }
      return true;
    case AgentMessage::reached: host.reached = true; return true;
    default: return false;
  }
}

void Hosts::say_to_all(AgentMessage kind, std::int64_t number) {
  for (auto& host : hosts_) host.connection->say({kind, -1, encode_number(number)});
}

}  // namespace bimetal::launch

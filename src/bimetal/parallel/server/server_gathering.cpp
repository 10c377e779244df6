// How the servers of a job come together, at its start and when another one leads: each joins the
// leader, and whoever waits for one that has died is told so (ServerOptions::lost).
#include <fmt/format.h>

#include <algorithm>
#include <asio/bind_cancellation_slot.hpp>
#include <asio/co_spawn.hpp>
#include <chrono>

#include "bimetal/base/release.h"
#include "bimetal/parallel/server/server_node.h"

namespace bimetal::parallel::server {

void ServerNode::join_coordinator(const net::Endpoint& coordinator_at, Deadline deadline) {
  const auto ended = [this, to = leader](std::exception_ptr error) {
    if (leader != to) return;  // given up
    try {
      if (error) std::rethrow_exception(error);
    } catch (const Error& failure) {
      fail(failure);
    } catch (const std::exception& failure) {
      fail(Error(ErrorCode::System, failure.what()));
    }
  };
  asio::co_spawn(io, connect_upstream(coordinator_at, deadline),
                 asio::bind_cancellation_slot(give_up.emplace_back().slot(), ended));
}

asio::awaitable<void> ServerNode::connect_upstream(net::Endpoint coordinator_at,
                                                   Deadline deadline) {
  const int to = leader;
  // Named: GCC 12 destroys aggregates made within a co_await expression twice.
  Credentials credentials{options.token, options.encryption, options.job_id};
  std::string name = fmt::format("server {} ({})", to, net::to_string(coordinator_at));
  auto link = co_await dial_server(std::move(coordinator_at), std::move(name),
                                   std::move(credentials), bytes_sent, deadline);
  if (leader != to) co_return;
  upstream = std::move(link);
  upstream->start(*this);
  Join join{.role = Role::server,
            .number = options.server,
            .host = options.host,
            .device = "cpu",
            .release = std::string(release()),
            .samples_per_s = 0,
            .step_seconds = 0,
            .facts = options.facts};
  upstream->send(MessageKind::join, {}, encode(join));
}

std::vector<int> ServerNode::awaited() {
  std::vector<int> all;
  if (coordinator) {
    for (const int server : coordinator->servers()) {
      const bool here = server == options.server || session_of(Role::server, server);
      if (!here && !complete) all.push_back(server);
    }
  } else if (lead_by) {
    for (int server = 1; server < options.servers; ++server) {
      const bool settled = server == options.server || followers.contains(server);
      if (!settled && !never_met.contains(server)) all.push_back(server);
    }
  } else if (!welcomed) {
    all.push_back(leader);
  }
  return all;
}

void ServerNode::never_came(int server) {
  if (!std::ranges::count(awaited(), server)) return;  // it has come meanwhile
  if (coordinator) {
    coordinator->server_lost(server, "it ended before it had joined",
                             std::chrono::steady_clock::now());
    begin_when_complete();
  } else if (lead_by) {
    never_met.insert(server);
  } else {
    follow_stand_in(Error(ErrorCode::PeerLost,
                          fmt::format("server {} is lost: it ended before server {} had joined it",
                                      server, options.server),
                          server));
  }
}

void ServerNode::begin_when_complete() {
  if (!coordinator || complete || !awaited().empty()) return;
  complete = true;
  std::vector<int> waiting;
  for (const auto& other : sessions) {
    if (other->admitted() && other->role() == Role::worker) waiting.push_back(other->number());
  }
  for (const int worker : waiting) coordinator->ready(worker, std::chrono::steady_clock::now());
}

}  // namespace bimetal::parallel::server

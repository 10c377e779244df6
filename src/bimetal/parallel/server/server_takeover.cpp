// Server 0 is dead and its copy, the stand-in, leads the job in its place. Every server has staged
// the gradients of every lease that server 0 ever ordered to be applied, so that a server can lack
// only orders. The followers send the stand-in the orders that they have seen. It sends each of
// them the orders that it lacks, and the job goes on where the newest of them is. Leases that had
// not been applied are computed again. docs/parameter_server.md, "When a server dies".
//
// How the servers of a job come together, at its start and when another one leads: each joins the
// leader, and all that wait for one that has died are told so (ServerOptions::lost).

#include <fmt/format.h>

#include <algorithm>
#include <asio/bind_cancellation_slot.hpp>
#include <asio/co_spawn.hpp>
#include <chrono>
#include <utility>

#include "bimetal/base/log.h"
#include "bimetal/base/release.h"
#include "bimetal/parallel/server/server_node.h"
#include "bimetal/parallel/server/shard_store.h"

namespace bimetal::parallel::server {
namespace {

using Clock = std::chrono::steady_clock;

/// More than servers on one network are ever apart.
constexpr std::size_t kOrdersKept = 4096;
/// For the other servers to notice, too. A server that died before is not waited for longer.
constexpr std::chrono::seconds kToGather{3};
constexpr std::uint32_t kSecondTerm = 1;
/// The number of the second term's first lease. The first term would need days of a thousand leases
/// per second to get here.
constexpr std::uint32_t kFirstLeaseOfSecondTerm = std::uint32_t{1} << 30;

}  // namespace

void ServerNode::note_order(std::uint64_t version, const Apply& update) {
  if (stand_in() < 0) return;
  orders.emplace_back(version, update);
  if (orders.size() > kOrdersKept) orders.pop_front();
}

Position ServerNode::position() const {
  return orders.empty() ? options.start : orders.back().second.after;
}

/// `why`: the job's error if nobody is there to follow.
void ServerNode::follow_stand_in(const Error& why) {
  const bool leads = options.server == stand_in();
  if (leader != 0 || stand_in() < 0 || stopped || !(leads || stand_in_at)) return fail(why);
  log(LogLevel::info, "server {}: {}; server {} leads from now on", options.server, why.what(),
      stand_in());
  leader = stand_in();
  welcomed = false;
  for (auto& attempt : give_up) attempt.emit(asio::cancellation_type::terminal);
  if (upstream) upstream->close();
  upstream.reset();
  upstream_silence = {};
  // Before the first update others may still be on their way here for the first time.
  auto by = Deadline::after(kToGather);
  if (orders.empty() && connect_by.time() > by.time()) by = connect_by;
  if (leads) {
    lead_by = by;
  } else {
    join_coordinator(*stand_in_at, by);
  }
}

/// To the stand-in, which has welcomed this server.
void ServerNode::send_what_it_lacks(std::uint64_t its_version) {
  for (const auto& [version, update] : orders) {
    if (version > its_version) {
      net::FrameHeader header;
      header.sequence = version;
      upstream->send(MessageKind::apply, header, encode(update));
    }
  }
  net::FrameHeader header;
  header.sequence = store.version();
  upstream->send(MessageKind::caught_up, header);
}

void ServerNode::on_order(ServerSession&, std::uint64_t version, const Apply& update) {
  if (options.server != stand_in() || coordinator) {
    throw Error(ErrorCode::CorruptData, "an order to a server that takes none");
  }
  if (version == store.version() + 1) apply_here(version, update);
}

void ServerNode::on_caught_up(ServerSession& session, std::uint64_t version) {
  followers[session.number()] = version;
}

bool ServerNode::ready_to_lead() {
  return awaited().empty() || lead_by->expired();
}

/// Error(PeerLost) where `keepers` leave a shard to nobody.
void ServerNode::require_every_shard(const std::set<int>& keepers) const {
  for (int shard = 0; shard < options.shards; ++shard) {
    if (keepers.contains(shard) || keepers.contains(shard + options.shards)) continue;
    throw Error(ErrorCode::PeerLost,
                fmt::format("servers 0 and {} and the copy of the latter are lost; their part of "
                            "the parameters is gone with them",
                            shard),
                shard);
  }
}

void ServerNode::lead(CoordinatorOptions with) {
  with.servers = {options.server};
  with.version = store.version();
  with.ledger.start = position();
  with.ledger.first_lease = kFirstLeaseOfSecondTerm;
  net::FrameHeader first;
  first.sequence = kFirstLeaseOfSecondTerm;
  for (const auto& session : sessions) {
    const auto follower = followers.find(session->number());
    if (session->role() != Role::server || follower == followers.end()) continue;
    with.servers.insert(session->number());
    for (const auto& [version, update] : orders) {
      if (version <= follower->second) continue;
      net::FrameHeader header;
      header.sequence = version;
      session->link().send(MessageKind::apply, header, encode(update));
    }
    session->link().send(MessageKind::forget, first);
  }
  require_every_shard(with.servers);
  store.forget_leases_before(kFirstLeaseOfSecondTerm);
  // Their gradients may still be on their way to the others.
  for (const auto lease : std::exchange(void_leases, {})) send_drop(lease);
  for (const auto& session : sessions) session->begin_term(kSecondTerm);
  complete = true;
  coordinator = std::make_unique<Coordinator>(
      with, *this, [this](Event event) { events.push(std::move(event)); }, Clock::now());
  std::vector<int> workers;
  for (const auto& session : sessions) {
    if (session->role() != Role::worker || !session->admitted()) continue;
    coordinator->admit(session->join());
    workers.push_back(session->number());
  }
  for (const int worker : workers) coordinator->ready(worker, Clock::now());
  std::vector<ServerSession*> without_number;  // refusing one takes it off the list
  for (const auto& session : sessions) without_number.push_back(session.get());
  for (auto* session : without_number) session->join_now();
}

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

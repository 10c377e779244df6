// Server 0 is dead and its copy, the stand-in, leads the job in its place. Every server has staged
// the gradients of every lease that server 0 ever ordered to be applied, so that what one of them
// may lack is orders alone: those that follow the stand-in send it what they have seen, it sends
// each what that one lacks, and the job goes on where the newest of them is. What had been leased
// out but not applied is computed again. docs/parameter_server.md, "When a server dies".
#include <fmt/format.h>

#include <utility>

#include "bimetal/base/log.h"
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
/// Of the second term's leases; the first would need days of a thousand leases per second to get
/// here.
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

/// `why` is what the job fails with if nobody is there to follow.
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
  // Whose gradients may still be on their way to the others.
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

}  // namespace bimetal::parallel::server

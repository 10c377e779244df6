#include "bimetal/parallel/server/server_node.h"

#include <fmt/format.h>

#include <algorithm>
#include <asio/redirect_error.hpp>
#include <asio/use_awaitable.hpp>

#include "bimetal/base/log.h"
#include "bimetal/base/release.h"
#include "bimetal/net/silence.h"
#include "bimetal/net/tcp/handlers.h"
#include "bimetal/parallel/server/events.h"
#include "bimetal/parallel/server/server_session.h"
#include "bimetal/parallel/server/shard_store.h"

namespace bimetal::parallel::server {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::chrono::milliseconds kTick{100};

net::FrameHeader numbered(std::uint64_t sequence, std::uint64_t count = 0) {
  net::FrameHeader header;
  header.sequence = sequence;
  header.count = count;
  return header;
}

std::string not_heard_of(int server, const Patience& patience) {
  return fmt::format("server {} has not been heard of within {}", server, patience.set_by);
}

}  // namespace

net::ListenerOptions ServerNode::listener_options() {
  auto listening = net::listener_options(net::Service::Parameters,
                                         {options.token, options.encryption, options.job_id});
  listening.on_connection = [this](asio::ip::tcp::socket socket,
                                   const net::AuthenticatedClient& client) {
    if (stopped) return;
    auto link =
        std::make_shared<Link>(std::move(socket), client.keys, Link::Side::server, bytes_sent);
    sessions.push_back(std::make_unique<ServerSession>(std::move(link), store, *this));
    sessions.back()->start();
  };
  return listening;
}

ServerSession* ServerNode::session_of(Role role, int number) {
  for (const auto& session : sessions) {
    if (session->admitted() && session->role() == role && session->number() == number) {
      return session.get();
    }
  }
  return nullptr;
}

/// Nothing: later, once this server leads.
std::optional<int> ServerNode::admit(ServerSession&, const Join& join) {
  require_same_release(join, std::string(release()));
  require_same_facts(join, options.facts);
  if (join.role == Role::reader) return 0;  // it takes part in nothing
  if (join.role == Role::server) {
    // The stand-in is joined by others that know already that server 0 is dead.
    const bool leads = options.server == stand_in() || (coordinates() && coordinator);
    const bool given_up = coordinator && !coordinator->servers().contains(join.number);
    const bool due = leads && !given_up && join.number > 0 && join.number != options.server &&
                     join.number < options.servers && !session_of(Role::server, join.number);
    if (due) return join.number;
    throw Error(ErrorCode::InvalidArgument,
                fmt::format("server {} is not expected here", join.number));
  }
  if (coordinator) return coordinator->admit(join);
  // Server 0 has died before it could give a number.
  if (join.number < 0 && options.server == stand_in()) return std::nullopt;
  if (join.number >= 0 && !session_of(Role::worker, join.number)) return join.number;
  throw Error(ErrorCode::InvalidArgument, fmt::format("there is a worker {} already", join.number),
              join.number);
}

void ServerNode::on_admitted(ServerSession& session) {
  log(LogLevel::info, "server {}: {} {} has joined from {}", options.server,
      to_string(session.role()), session.number(), session.link().remote());
  if (!coordinates() || !coordinator || session.role() == Role::reader) return;
  if (complete && session.role() == Role::worker) {
    coordinator->ready(session.number(), Clock::now());
  }
  begin_when_complete();
}

void ServerNode::on_staged(ServerSession& session, std::uint64_t lease, bool finite) {
  if (coordinator) {
    // A worker's own session tells which leases are whole here, a server's which are whole there.
    const int server = session.role() == Role::server ? session.number() : options.server;
    coordinator->staged(server, lease, finite, Clock::now());
  } else if (upstream) {
    upstream->send(MessageKind::staged, numbered(lease, finite ? 1 : 0));
  }
}

void ServerNode::on_done(ServerSession& session, std::uint64_t lease, const Done& done) {
  if (!coordinator && options.server == stand_in()) {
    // Its worker knows already that server 0 is dead, and its lease is void with it.
    void_leases.push_back(lease);
    return;
  }
  if (!coordinator) {
    throw Error(ErrorCode::CorruptData, "results are for server 0 alone", session.number());
  }
  coordinator->done(session.number(), lease, done, Clock::now());
}

/// One that does not lead has nobody to tell.
void ServerNode::on_said(ServerSession& session, Said said) {
  if (!coordinator) return;
  const bool server = session.role() == Role::server;
  const int who = server ? -1 - session.number() : session.number();
  events.push(SaidEvent{who, session.join().host, std::move(said.lines)});
}

void ServerNode::on_state(ServerSession& session, Body state) {
  const int from = session.number() % options.shards;
  states[from] = std::move(state);
  asked_for_state[from].reset();
}

void ServerNode::ask_for_states() {
  for (int other = 0; other < options.shards; ++other) {
    if (other == shard()) continue;
    const auto asked = asked_for_state.find(other);
    const bool in_hand = asked != asked_for_state.end() &&
                         (!asked->second || session_of(Role::server, *asked->second) != nullptr);
    if (in_hand) continue;
    auto* keeper = session_of(Role::server, other);
    if (!keeper) keeper = session_of(Role::server, other + options.shards);
    if (!keeper) {
      throw Error(
          ErrorCode::PeerLost,
          fmt::format("server {} is lost; its part of the parameters is gone with it", other),
          other);
    }
    asked_for_state[other] = keeper->number();
    keeper->link().send(MessageKind::snapshot, {});
  }
}

void ServerNode::on_gone(ServerSession& session, const std::string& why) {
  log(LogLevel::info, "server {}: the connection from {} has ended: {}", options.server,
      session.link().remote(), why.empty() ? "it has left" : why);
  const auto own =
      std::ranges::find_if(sessions, [&](const auto& other) { return other.get() == &session; });
  if (own != sessions.end()) {
    gone.push_back(std::move(*own));
    sessions.erase(own);
  }
  if (!session.admitted() || finished || session.role() == Role::reader) return;
  if (session.role() == Role::worker) {
    store.forget_worker(session.number());
    if (coordinator) coordinator->lost(session.number(), why, Clock::now());
  } else if (coordinator) {
    coordinator->server_lost(session.number(), why, Clock::now());
    begin_when_complete();
  }
}

void ServerNode::send_lease(int worker, const Lease& lease) {
  if (auto* session = session_of(Role::worker, worker)) {
    // Past parameters on their way: the next parameters may be asked for under it.
    session->link().send_urgent(MessageKind::lease, numbered(lease.id), encode(lease));
  }
}

void ServerNode::send_apply(std::uint64_t version, const Apply& update) {
  for (const auto& session : sessions) {
    if (session->admitted() && session->role() == Role::server) {
      session->link().send(MessageKind::apply, numbered(version), encode(update));
    }
  }
  // Later, so that the other servers' orders have left when this thread begins to work on its own.
  asio::post(io, [this, version, update] { apply_here(version, update); });
}

/// An error here concerns the job, not the worker whose message has led to it.
void ServerNode::apply_here(std::uint64_t version, const Apply& update) {
  try {
    store.apply(version, update);
  } catch (const Error& error) {
    fail(error);
    return;
  } catch (const std::exception& error) {
    fail(Error(ErrorCode::Internal, error.what()));
    return;
  }
  note_order(version, update);
  pull_all();
}

void ServerNode::pull_all() {
  for (const auto& session : sessions) session->serve_pull();
}

void ServerNode::send_drop(std::uint64_t lease) {
  for (const auto& session : sessions) {
    if (session->admitted() && session->role() == Role::server) {
      session->link().send(MessageKind::drop, numbered(lease));
    }
  }
  store.drop(lease);
}

void ServerNode::send_record(const StepEvent& step) {
  if (auto* session = session_of(Role::server, stand_in())) {
    session->link().send(MessageKind::record, {}, encode(step));
  }
}

/// A server that watches nobody any more cannot go on.
void ServerNode::start_ticking() {
  net::spawn(io, tick_loop(), [this](const Error& error) { fail(error); });
}

asio::awaitable<void> ServerNode::tick_loop() {
  while (!stopped) {
    gone.clear();
    if (coordinator) {
      watch_workers();
      watch_servers();
      if (!finished) coordinator->tick(Clock::now());
    }
    watch_leader();
    tell_log();
    if (lead_by && ready_to_lead()) {
      lead_by.reset();
      events.push(TakeOverEvent{});
    }
    timer.expires_after(kTick);
    std::error_code ignored;
    co_await timer.async_wait(asio::redirect_error(asio::use_awaitable, ignored));
  }
}

void ServerNode::watch_workers() {
  for (const auto& session : sessions) {
    if (session->admitted() && session->role() == Role::worker) {
      const auto heard = session->link().heard();
      coordinator->heard(session->number(), heard);
      net::note_silence(session->number(), session->silence().after(kTick, heard));
    }
  }
}

Patience ServerNode::patience_with(const Link& link) const {
  return patience_for(options.peer_timeout, options.timeout, link.stays_on_host());
}

/// A host that has lost its power or its cable says no goodbye, and updates wait for all servers.
void ServerNode::watch_servers() {
  if (finished) return;
  std::vector<ServerSession*> silent;  // refusing one takes it off the list
  for (const auto& session : sessions) {
    if (!session->admitted() || session->role() != Role::server) continue;
    const auto so_far = session->silence().after(kTick, session->link().heard());
    if (so_far > patience_with(session->link()).time) silent.push_back(session.get());
  }
  for (auto* session : silent) {
    const auto why = not_heard_of(session->number(), patience_with(session->link()));
    session->link().refuse(Error(ErrorCode::PeerLost, why, session->number()));
  }
}

void ServerNode::watch_leader() {
  if (!upstream || finished) return;
  const auto patience = patience_with(*upstream);
  if (upstream_silence.after(kTick, upstream->heard()) <= patience.time) return;
  const auto why = not_heard_of(leader, patience);
  const auto silent = std::exchange(upstream, nullptr);
  const int before = leader;
  follow_stand_in(Error(ErrorCode::PeerLost, why, before));
  if (leader == before) return silent->close();
  // It may only have been stopped, and would go on as if it led the job.
  has_deposed = true;
  const Error deposed(kDeposed, fmt::format("{}; server {} leads the job", why, leader), before);
  silent->send(MessageKind::refused, {}, encode(deposed));
  silent->finish();
}

/// This server's own log, for those that watch the job.
void ServerNode::tell_log() {
  const bool followed = upstream && welcomed;
  if (options.log == nullptr || finished || !(coordinator || followed) || !options.log->due()) {
    return;
  }
  Said said{options.log->take()};
  if (coordinator) {
    events.push(SaidEvent{-1 - options.server, options.host, std::move(said.lines)});
  } else {
    upstream->send(MessageKind::said, {}, encode(said));
  }
}

// ---- under server 0's orders --------------------------------------------------------------------

/// `version`: of server 0's parameters.
void ServerNode::require_same_start(std::uint64_t version) const {
  if (leader != 0 || version == store.version()) return;
  throw Error(ErrorCode::InvalidArgument,
              fmt::format("server 0 begins at step {}, server {} at step {}: all servers need the "
                          "same checkpoint (--resume, of `bimetal train` and of `bimetal join "
                          "--server`)",
                          version, options.server, store.version()));
}

std::span<std::byte> ServerNode::place(const net::FrameHeader&) {
  throw Error(ErrorCode::CorruptData, "server 0 sends no tensors to other servers");
}

void ServerNode::on_message(const net::FrameHeader& header, std::span<const std::byte> body) {
  switch (static_cast<MessageKind>(header.operation)) {
    case MessageKind::welcome:
      welcomed = true;
      require_same_start(decode_welcome(body).version);
      if (leader != 0) send_what_it_lacks(decode_welcome(body).version);
      return;
    case MessageKind::record: events.push(decode_step_record(body)); return;
    case MessageKind::forget:
      store.forget_leases_before(static_cast<std::uint32_t>(header.sequence));
      for (const auto& session : sessions) session->begin_term(1);
      return;
    case MessageKind::refused: told_why = true; throw decode_refused(body);
    case MessageKind::apply: apply_here(header.sequence, decode_apply(body)); return;
    case MessageKind::drop: store.drop(header.sequence); return;
    case MessageKind::snapshot: return send_state();
    case MessageKind::finish:
      finished = true;
      for (const auto& session : sessions) {
        session->link().send(MessageKind::finish, {});
        session->link().finish();
      }
      upstream->finish();
      return;
    default: throw Error(ErrorCode::CorruptData, "an order that has no place here");
  }
}

/// In pieces: heartbeats and orders pass between them.
void ServerNode::send_state() {
  const auto state = std::make_shared<const Body>(options.state());
  std::span<const std::byte> rest = *state;
  do {
    const auto piece = rest.first(std::min(rest.size(), kMaxBodyBytes));
    upstream->send_bulk(MessageKind::state, numbered(store.version(), state->size()), piece, state);
    rest = rest.subspan(piece.size());
  } while (!rest.empty());
}

void ServerNode::on_closed(const Error& why) {
  if (finished) return;
  if (told_why) return fail(why);
  if (why.code() != ErrorCode::PeerLost) {
    return fail(Error(
        why.code(), fmt::format("the connection with server {} is broken: {}", leader, why.what()),
        leader));
  }
  follow_stand_in(
      Error(ErrorCode::PeerLost, fmt::format("server {} is lost: {}", leader, why.what()), leader));
}

}  // namespace bimetal::parallel::server

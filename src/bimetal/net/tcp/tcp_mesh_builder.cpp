#include <fmt/format.h>

#include <algorithm>
#include <asio/co_spawn.hpp>
#include <exception>
#include <utility>

#include "bimetal/base/deadline.h"
#include "bimetal/base/log.h"
#include "bimetal/net/silence.h"
#include "bimetal/net/tcp/dial.h"
#include "bimetal/net/tcp/listener.h"
#include "bimetal/net/tcp/sockets.h"
#include "bimetal/net/tcp/tcp_mesh.h"
#include "bimetal/net/tcp/tcp_mesh_impl.h"

namespace bimetal::net {
namespace {

// Ticks are cheap; many of them keep the time to notice a dead path close to peer_timeout, and
// heartbeats close to theirs.
constexpr int kTicksPerTimeout = 16;
constexpr int kTicksPerHeartbeat = 4;
// How long a refusal may take to reach the rank that is refused.
constexpr std::chrono::milliseconds kLastWords{250};
// How often to see whether it is still worth waiting.
constexpr std::chrono::milliseconds kLookEvery{250};

std::chrono::milliseconds tick_interval(const TcpMeshOptions& options) {
  const auto shortest = peer_timeout_for(options.peer_timeout, /*stays_on_host=*/true);
  const auto often = std::min(shortest / kTicksPerTimeout, options.heartbeat / kTicksPerHeartbeat);
  return std::max(often, std::chrono::milliseconds(1));
}

}  // namespace

/// Gathers the first connections on the caller's thread; the mesh's own thread starts when all of
/// them stand.
struct TcpMeshBuilder::Impl {
  Impl(int rank, int size, TcpMeshOptions given);

  ListenerOptions listener_options() const;
  std::optional<Refusal> admit(const Hello& hello);
  void listen();
  asio::awaitable<void> call(int peer, Deadline deadline);
  void take_in(tcp::socket socket, const AuthenticatedClient& client);
  void add(int peer, std::shared_ptr<Connection> connection);
  void give_up(const Hello& hello);
  void end_call(std::exception_ptr error);
  void wait(Deadline deadline);
  Error missing_peers() const;

  bool complete() const { return missing == 0; }
  std::shared_ptr<Connection>& connection(int peer) {
    return parts.connections[static_cast<std::size_t>(peer)];
  }

  std::unique_ptr<Peers> peers;
  const TcpMeshOptions& options;
  const int rank;
  const int size;
  const Stopwatch begun;
  TcpMeshParts parts;
  std::vector<std::string> troubles;  ///< why the last call to each rank failed
  std::exception_ptr failure;
  int missing = 0;
  std::unique_ptr<asio::steady_timer> last_words;
};

TcpMeshBuilder::Impl::Impl(int rank_given, int size_given, TcpMeshOptions given)
    : peers(std::make_unique<Peers>(rank_given, size_given, std::move(given))),
      options(peers->options()),
      rank(rank_given),
      size(size_given),
      troubles(static_cast<std::size_t>(size)) {
  // Without the hint that one thread runs it: a handler's posts on that thread would come after
  // later posts of others, and a goodbye could overtake the abort that explains it.
  parts.io = std::make_unique<asio::io_context>();
  parts.connections.resize(static_cast<std::size_t>(size));
  parts.bytes_sent = std::make_unique<std::atomic<std::uint64_t>>(0);
  parts.door = std::make_shared<Door>();
  parts.door->admit = [this](const Hello& hello) { return admit(hello); };
  parts.door->on_connection = [this](tcp::socket socket, const AuthenticatedClient& client) {
    take_in(std::move(socket), client);
  };
  last_words = std::make_unique<asio::steady_timer>(*parts.io);
  for (int peer = 0; peer < size; ++peer) missing += peers->connects_first(peer) ? 1 : 0;
  listen();
}

/// An address that cannot be listened on (it has just gone, IPv6 is still looking for others that
/// have it) is left out if there are others.
void TcpMeshBuilder::Impl::listen() {
  std::exception_ptr first_failure;
  auto& listeners = parts.listeners;
  for (const std::string& host : options.listen_hosts) {
    try {
      listeners.push_back(
          std::make_unique<Listener>(*parts.io, Endpoint{host, 0}, listener_options()));
      log(LogLevel::debug, "rank {} listens on {}", rank, to_string(listeners.back()->endpoint()));
    } catch (const Error& error) {
      if (error.code() != ErrorCode::System) throw;
      log(LogLevel::warning, "rank {} leaves an address out: {}", rank, error.what());
      if (!first_failure) first_failure = std::current_exception();
    }
  }
  if (!listeners.empty()) return;
  if (first_failure) std::rethrow_exception(first_failure);
  throw Error(ErrorCode::InvalidArgument, fmt::format("rank {} has no address to listen on", rank));
}

ListenerOptions TcpMeshBuilder::Impl::listener_options() const {
  ListenerOptions result;
  result.token = options.token;
  result.service = Service::Mesh;
  result.admit = [door = parts.door](const Hello& hello) { return door->admit(hello); };
  result.on_connection = [door = parts.door](tcp::socket socket,
                                             const AuthenticatedClient& client) {
    door->on_connection(std::move(socket), client);
  };
  return result;
}

std::optional<Refusal> TcpMeshBuilder::Impl::admit(const Hello& hello) {
  if (const auto refusal = peers->refusal(hello)) return refusal;
  const bool due = hello.from_rank > rank || size > options.complete_up_to;
  if (!due) return Refusal::Rank;
  if (hello.encrypted != peers->encrypted()) {
    give_up(hello);
    return Refusal::Encryption;
  }
  return std::nullopt;
}

/// A rank of this job wants another kind of connection: no waiting mends that. It gets its Reject
/// before the set-up ends here.
void TcpMeshBuilder::Impl::give_up(const Hello& hello) {
  const bool here = peers->encrypted();
  failure = std::make_exception_ptr(
      Error(ErrorCode::InvalidArgument,
            fmt::format("rank {} wants {} connections, but rank {} {} ones; set BIMETAL_ENCRYPTION "
                        "alike on every machine",
                        hello.from_rank, hello.encrypted ? "encrypted" : "plain", rank,
                        here ? "encrypted" : "plain"),
            hello.from_rank));
  last_words->expires_after(kLastWords);
  last_words->async_wait([this](const std::error_code& error) {
    if (!error) parts.io->stop();
  });
}

asio::awaitable<void> TcpMeshBuilder::Impl::call(int peer, Deadline deadline) {
  DialRequest request = peers->call_to(peer, deadline);
  request.on_trouble = [this, peer](const std::string& trouble) {
    log(LogLevel::debug, "rank {} calls rank {}: {}; trying again", rank, peer, trouble);
    troubles[static_cast<std::size_t>(peer)] = trouble;
  };
  DialedConnection dialed = co_await dial(std::move(request));
  add(peer, peers->made_with(peer, std::move(dialed), *parts.bytes_sent));
}

/// Some may be further than this rank, and already need the mesh's answers.
void TcpMeshBuilder::Impl::take_in(tcp::socket socket, const AuthenticatedClient& client) {
  const int peer = client.hello.from_rank;
  if (peer < rank) {
    parts.wanted_by.insert(peer);
    return;
  }
  auto made = peers->made_by(client, std::move(socket), *parts.bytes_sent);
  if (!peers->connects_first(peer)) {
    made->expect_confirmation();
    parts.unconfirmed.insert(peer);
  }
  add(peer, std::move(made));
}

/// A newer connection of a peer takes the older one's place: its maker has given that one up.
void TcpMeshBuilder::Impl::add(int peer, std::shared_ptr<Connection> made) {
  auto& place = connection(peer);
  if (!place && peers->connects_first(peer)) --missing;
  place = std::move(made);
  if (log_enabled(LogLevel::info)) {
    log(LogLevel::info, "rank {} is connected to {}: TCP, {}, after {:.3f} s", rank,
        place->describe(), peers->encrypted() ? "encrypted" : "plain", begun.seconds());
  }
  if (complete()) parts.io->stop();
}

/// An error that trying again cannot mend ends the set-up. A peer that was not reached in time is
/// named at the deadline together with all others that are missing.
void TcpMeshBuilder::Impl::end_call(std::exception_ptr error) {
  try {
    if (error) std::rethrow_exception(error);
  } catch (const Error& failed) {
    if (failed.code() == ErrorCode::Timeout) return;
    failure = std::move(error);
    parts.io->stop();
  }
}

/// Until all are connected, something has failed, or the deadline.
void TcpMeshBuilder::Impl::wait(Deadline deadline) {
  while (!complete() && !parts.io->stopped() && !deadline.expired()) {
    parts.io->run_until(min(deadline, Deadline::after(kLookEvery)).time());
    // The last moments are left to those who connect.
    const bool going_on = !complete() && !failure && deadline.remaining() > kLookEvery;
    if (going_on && options.while_connecting) options.while_connecting();
  }
}

Error TcpMeshBuilder::Impl::missing_peers() const {
  std::string list;
  for (int peer = 0; peer < size; ++peer) {
    const bool here = parts.connections[static_cast<std::size_t>(peer)] != nullptr;
    if (!peers->connects_first(peer) || here) continue;
    if (!list.empty()) list += ", ";
    list += peers->name_of(peer, to_string(peers->addresses_of(peer)));
    const std::string& trouble = troubles[static_cast<std::size_t>(peer)];
    if (!trouble.empty()) list += fmt::format(" [{}]", trouble);
  }
  return Error(ErrorCode::Timeout,
               fmt::format("rank {} could not connect with {} in time; check that it still runs "
                           "and that no firewall is in the way",
                           rank, list));
}

TcpMeshBuilder::TcpMeshBuilder(int rank, int size, TcpMeshOptions options)
    : impl_(std::make_unique<Impl>(rank, size, std::move(options))) {}

TcpMeshBuilder::~TcpMeshBuilder() = default;

std::vector<Endpoint> TcpMeshBuilder::listening() const {
  std::vector<Endpoint> endpoints;
  for (const auto& listener : impl_->parts.listeners) endpoints.push_back(listener->endpoint());
  return endpoints;
}

std::unique_ptr<Mesh> TcpMeshBuilder::connect(const std::vector<std::vector<Endpoint>>& peers,
                                              Deadline deadline,
                                              std::vector<std::string> host_names) && {
  const auto consumed =
      std::move(impl_);  // its timer must not outlive the mesh, which gets the io_context
  Impl& impl = *consumed;
  TcpMeshParts& parts = impl.parts;
  impl.peers->set_addresses(peers, std::move(host_names));
  for (const auto& listener : parts.listeners) listener->start();
  for (int peer = 0; peer < impl.rank; ++peer) {
    if (!impl.peers->connects_first(peer)) continue;
    asio::co_spawn(*parts.io, impl.call(peer, deadline),
                   [&impl](std::exception_ptr error) { impl.end_call(std::move(error)); });
  }
  impl.wait(deadline);
  if (impl.failure) std::rethrow_exception(impl.failure);
  if (!impl.complete()) throw impl.missing_peers();
  // Handlers that belong to the set-up end here, before the mesh's own thread takes over.
  if (impl.size <= impl.options.complete_up_to) parts.listeners.clear();
  parts.io->restart();
  parts.io->poll();
  const auto interval = tick_interval(impl.options);
  return std::make_unique<TcpMesh>(std::move(parts), std::move(impl.peers), interval);
}

}  // namespace bimetal::net

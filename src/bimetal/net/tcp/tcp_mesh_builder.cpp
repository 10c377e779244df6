#include <fmt/format.h>

#include <algorithm>
#include <asio/co_spawn.hpp>
#include <exception>
#include <utility>

#include "bimetal/base/deadline.h"
#include "bimetal/base/log.h"
#include "bimetal/net/tcp/dial.h"
#include "bimetal/net/tcp/listener.h"
#include "bimetal/net/tcp/peer_timeout.h"
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

void check_rank(int rank, int size) {
  if (size < 1 || rank < 0 || rank >= size) {
    throw Error(ErrorCode::InvalidArgument,
                fmt::format("rank {} is not within a world of {} ranks", rank, size));
  }
}

}  // namespace

/// Gathers one connection to each peer on the caller's thread; the mesh's own thread starts when
/// all of them stand.
struct TcpMeshBuilder::Impl {
  Impl(int rank, int size, TcpMeshOptions given);

  ListenerOptions listener_options();
  std::optional<Refusal> admit(const Hello& hello);
  bool encrypted() const { return options.encryption == Encryption::on; }
  void listen();
  asio::awaitable<void> call(int peer, Deadline deadline);
  void add(int peer, tcp::socket socket, ConnectionOptions connection);
  void give_up(const Hello& hello);
  void end_call(std::exception_ptr error);
  void wait(Deadline deadline);
  std::string name_of(int peer, const std::string& address) const;
  Error missing_peers() const;

  bool complete() const { return missing == 0; }

  const int rank;
  const int size;
  const TcpMeshOptions options;
  const JobDigest job;
  const Stopwatch begun;
  // Before everything that lives on it, so that it goes last. Without the hint that one thread runs
  // it: what that thread posts from within a handler would come after what others post later, and
  // a goodbye could overtake the abort that explains it.
  std::unique_ptr<asio::io_context> io = std::make_unique<asio::io_context>();
  std::vector<std::string> hosts;
  std::vector<std::vector<Endpoint>> addresses;
  std::vector<std::shared_ptr<Connection>> connections;
  std::vector<std::string> troubles;  ///< why the last call to each rank failed
  std::exception_ptr failure;
  int missing;
  std::unique_ptr<std::atomic<std::uint64_t>> bytes_sent =
      std::make_unique<std::atomic<std::uint64_t>>(0);
  asio::steady_timer last_words{*io};
  std::vector<std::unique_ptr<Listener>> listeners;
};

TcpMeshBuilder::Impl::Impl(int rank_given, int size_given, TcpMeshOptions given)
    : rank(rank_given),
      size((check_rank(rank_given, size_given), size_given)),
      options(std::move(given)),
      job(digest_of_job(options.job_id)),
      connections(static_cast<std::size_t>(size)),
      troubles(static_cast<std::size_t>(size)),
      missing(size - 1) {
  listen();
}

/// An address that cannot be listened on (it has just gone, IPv6 is still looking for others that
/// have it) is left out if there are others.
void TcpMeshBuilder::Impl::listen() {
  std::exception_ptr first_failure;
  for (const std::string& host : options.listen_hosts) {
    try {
      listeners.push_back(std::make_unique<Listener>(*io, Endpoint{host, 0}, listener_options()));
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

ListenerOptions TcpMeshBuilder::Impl::listener_options() {
  ListenerOptions result;
  result.token = options.token;
  result.service = Service::Mesh;
  result.admit = [this](const Hello& hello) { return admit(hello); };
  result.on_connection = [this](tcp::socket socket, const AuthenticatedClient& client) {
    ConnectionOptions connection;
    connection.send_key = client.keys.server_to_client;
    connection.receive_key = client.keys.client_to_server;
    if (const auto& ciphers = client.keys.ciphers) {
      connection.send_cipher = ciphers->to_initiator;
      connection.receive_cipher = ciphers->to_responder;
    }
    add(client.hello.from_rank, std::move(socket), std::move(connection));
  };
  return result;
}

std::optional<Refusal> TcpMeshBuilder::Impl::admit(const Hello& hello) {
  if (hello.job != job) return Refusal::Job;
  const bool due = hello.from_rank > rank && hello.from_rank < size;
  if (hello.to_rank != rank || !due) return Refusal::Rank;
  if (hello.encrypted != encrypted()) {
    give_up(hello);
    return Refusal::Encryption;
  }
  return std::nullopt;
}

/// A rank of this job wants another kind of connection: no waiting mends that. It gets its Reject
/// before the set-up ends here.
void TcpMeshBuilder::Impl::give_up(const Hello& hello) {
  failure = std::make_exception_ptr(
      Error(ErrorCode::InvalidArgument,
            fmt::format("rank {} wants {} connections, but rank {} {} ones; set BIMETAL_ENCRYPTION "
                        "alike on every machine",
                        hello.from_rank, hello.encrypted ? "encrypted" : "plain", rank,
                        encrypted() ? "encrypted" : "plain"),
            hello.from_rank));
  last_words.expires_after(kLastWords);
  last_words.async_wait([this](const std::error_code& error) {
    if (!error) io->stop();
  });
}

asio::awaitable<void> TcpMeshBuilder::Impl::call(int peer, Deadline deadline) {
  const auto& where = addresses[static_cast<std::size_t>(peer)];
  DialRequest request{where, name_of(peer, to_string(where)), options.token, {}, deadline, {}};
  request.on_trouble = [this, peer](const std::string& trouble) {
    log(LogLevel::debug, "rank {} calls rank {}: {}; trying again", rank, peer, trouble);
    troubles[static_cast<std::size_t>(peer)] = trouble;
  };
  request.hello.from_rank = rank;
  request.hello.to_rank = peer;
  request.hello.job = job;
  request.hello.encrypted = encrypted();
  DialedConnection dialed = co_await dial(std::move(request));
  ConnectionOptions connection;
  connection.send_key = dialed.keys.client_to_server;
  connection.receive_key = dialed.keys.server_to_client;
  if (const auto& ciphers = dialed.keys.ciphers) {
    connection.send_cipher = ciphers->to_responder;
    connection.receive_cipher = ciphers->to_initiator;
  }
  add(peer, std::move(dialed.socket), std::move(connection));
}

/// A newer connection of a peer takes the older one's place: its maker has given that one up.
void TcpMeshBuilder::Impl::add(int peer, tcp::socket socket, ConnectionOptions connection) {
  auto& place = connections[static_cast<std::size_t>(peer)];
  if (!place) --missing;
  connection.peer = peer;
  connection.peer_name = name_of(peer, describe_remote(socket));
  connection.heartbeat = options.heartbeat;
  connection.peer_timeout = options.peer_timeout;
  if (log_enabled(LogLevel::info)) {
    log(LogLevel::info, "rank {} is connected to {} from {}: TCP, {}, after {:.3f} s", rank,
        connection.peer_name, describe_local(socket), encrypted() ? "encrypted" : "plain",
        begun.seconds());
  }
  place = std::make_shared<Connection>(std::move(socket), std::move(connection), *bytes_sent);
  if (complete()) io->stop();
}

/// What cannot be mended by trying again ends the set-up. A peer that was not reached in time is
/// named at the deadline together with all others that are missing.
void TcpMeshBuilder::Impl::end_call(std::exception_ptr error) {
  try {
    if (error) std::rethrow_exception(error);
  } catch (const Error& failed) {
    if (failed.code() == ErrorCode::Timeout) return;
    failure = std::move(error);
    io->stop();
  }
}

/// Until all are connected, something has failed, or the deadline.
void TcpMeshBuilder::Impl::wait(Deadline deadline) {
  while (!complete() && !io->stopped() && !deadline.expired()) {
    io->run_until(min(deadline, Deadline::after(kLookEvery)).time());
    // The last moments are left to those who connect.
    const bool going_on = !complete() && !failure && deadline.remaining() > kLookEvery;
    if (going_on && options.while_connecting) options.while_connecting();
  }
}

std::string TcpMeshBuilder::Impl::name_of(int peer, const std::string& address) const {
  const std::string& host = hosts[static_cast<std::size_t>(peer)];
  return host == address ? fmt::format("rank {} ({})", peer, address)
                         : fmt::format("rank {} ({}, {})", peer, host, address);
}

Error TcpMeshBuilder::Impl::missing_peers() const {
  std::string list;
  for (int peer = 0; peer < size; ++peer) {
    if (peer == rank || connections[static_cast<std::size_t>(peer)]) continue;
    if (!list.empty()) list += ", ";
    list += name_of(peer, to_string(addresses[static_cast<std::size_t>(peer)]));
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
  for (const auto& listener : impl_->listeners) endpoints.push_back(listener->endpoint());
  return endpoints;
}

std::unique_ptr<Mesh> TcpMeshBuilder::connect(const std::vector<std::vector<Endpoint>>& peers,
                                              Deadline deadline,
                                              std::vector<std::string> host_names) && {
  const auto consumed = std::move(impl_);  // its timer must not outlive the mesh, which gets `io`
  Impl& impl = *consumed;
  if (peers.size() != static_cast<std::size_t>(impl.size)) {
    throw Error(ErrorCode::InvalidArgument,
                fmt::format("{} addresses given for {} ranks", peers.size(), impl.size));
  }
  impl.addresses = peers;
  impl.hosts = std::move(host_names);
  for (std::size_t peer = impl.hosts.size(); peer < peers.size(); ++peer) {
    impl.hosts.push_back(peers[peer].empty() ? "" : peers[peer].front().host);
  }
  for (const auto& listener : impl.listeners) listener->start();
  for (int peer = 0; peer < impl.rank; ++peer) {
    asio::co_spawn(*impl.io, impl.call(peer, deadline),
                   [&impl](std::exception_ptr error) { impl.end_call(std::move(error)); });
  }
  impl.wait(deadline);
  if (impl.failure) std::rethrow_exception(impl.failure);
  if (!impl.complete()) throw impl.missing_peers();
  // What belongs to the set-up ends here, before the mesh's own thread takes over.
  impl.listeners.clear();
  impl.io->restart();
  impl.io->poll();
  return std::make_unique<TcpMesh>(impl.rank, std::move(impl.io), std::move(impl.connections),
                                   std::move(impl.hosts), std::move(impl.bytes_sent),
                                   tick_interval(impl.options));
}

}  // namespace bimetal::net

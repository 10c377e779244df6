#include <fmt/format.h>

#include <utility>

#include "bimetal/base/error.h"
#include "bimetal/base/wire.h"
#include "bimetal/net/tcp/sockets.h"
#include "bimetal/net/tcp/tcp_mesh_impl.h"

namespace bimetal::net {
namespace {

void check_rank(int rank, int size) {
  if (size < 1 || rank < 0 || rank >= size) {
    throw Error(ErrorCode::InvalidArgument,
                fmt::format("rank {} is not within a world of {} ranks", rank, size));
  }
}

}  // namespace

Peers::Peers(int rank, int size, TcpMeshOptions options)
    : rank_(rank),
      size_((check_rank(rank, size), size)),
      options_(std::move(options)),
      job_(digest_of_job(options_.job_id)) {}

void Peers::set_addresses(std::vector<std::vector<Endpoint>> addresses,
                          std::vector<std::string> hosts) {
  if (addresses.size() != index(size_)) {
    throw Error(ErrorCode::InvalidArgument,
                fmt::format("{} addresses given for {} ranks", addresses.size(), size_));
  }
  addresses_ = std::move(addresses);
  hosts_ = std::move(hosts);
  for (std::size_t peer = hosts_.size(); peer < addresses_.size(); ++peer) {
    hosts_.push_back(addresses_[peer].empty() ? "" : addresses_[peer].front().host);
  }
}

bool Peers::connects_first(int peer) const noexcept {
  if (peer == rank_) return false;
  return size_ <= options_.complete_up_to || near_on_ring(rank_, peer, size_);
}

bool Peers::stays_on_host(int peer) const {
  const auto& there = addresses_of(peer);
  const auto& here = addresses_of(rank_);
  return !there.empty() && !here.empty() && there.front().host == here.front().host;
}

std::string Peers::name_of(int peer, const std::string& address) const {
  const std::string& host = host_of(peer);
  return host == address ? fmt::format("rank {} ({})", peer, address)
                         : fmt::format("rank {} ({}, {})", peer, host, address);
}

DialRequest Peers::call_to(int peer, Deadline deadline) const {
  const auto& where = addresses_of(peer);
  DialRequest request{where, name_of(peer, to_string(where)), options_.token, {}, deadline, {}, {}};
  request.hello.from_rank = rank_;
  request.hello.to_rank = peer;
  request.hello.job = job_;
  request.hello.encrypted = encrypted();
  return request;
}

std::optional<Refusal> Peers::refusal(const Hello& hello) const {
  if (hello.job != job_) return Refusal::Job;
  const bool another = hello.from_rank >= 0 && hello.from_rank < size_ && hello.from_rank != rank_;
  return hello.to_rank == rank_ && another ? std::nullopt : std::optional(Refusal::Rank);
}

std::shared_ptr<Connection> Peers::made_with(int peer, DialedConnection dialed,
                                             std::atomic<std::uint64_t>& bytes_sent) const {
  ConnectionOptions connection;
  connection.send_key = dialed.keys.client_to_server;
  connection.receive_key = dialed.keys.server_to_client;
  connection.send_cipher = dialed.keys.cipher_to_server();
  connection.receive_cipher = dialed.keys.cipher_to_client();
  return make(peer, std::move(dialed.socket), std::move(connection), bytes_sent);
}

std::shared_ptr<Connection> Peers::made_by(const AuthenticatedClient& client,
                                           asio::ip::tcp::socket socket,
                                           std::atomic<std::uint64_t>& bytes_sent) const {
  ConnectionOptions connection;
  connection.send_key = client.keys.server_to_client;
  connection.receive_key = client.keys.client_to_server;
  connection.send_cipher = client.keys.cipher_to_client();
  connection.receive_cipher = client.keys.cipher_to_server();
  return make(client.hello.from_rank, std::move(socket), std::move(connection), bytes_sent);
}

std::shared_ptr<Connection> Peers::make(int peer, asio::ip::tcp::socket socket,
                                        ConnectionOptions connection,
                                        std::atomic<std::uint64_t>& bytes_sent) const {
  connection.peer = peer;
  connection.peer_name = name_of(peer, describe_remote(socket));
  connection.heartbeat = options_.heartbeat;
  connection.peer_timeout = options_.peer_timeout;
  return std::make_shared<Connection>(std::move(socket), std::move(connection), bytes_sent);
}

std::vector<std::byte> encode_loss(const Error& loss) {
  constexpr std::size_t kMaxText = kMaxLossBytes - 64;
  WireWriter out;
  write_error(out, loss, kMaxText);
  return std::move(out).take();
}

Error decode_loss(std::span<const std::byte> payload, int size) {
  Error loss = read_error(payload);
  if (loss.rank() && *loss.rank() >= 0 && *loss.rank() < size) return loss;
  throw Error(ErrorCode::CorruptData, "a loss that names no rank");
}

}  // namespace bimetal::net

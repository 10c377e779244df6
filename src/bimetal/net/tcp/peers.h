#pragma once
// Who the ranks of a mesh are, how one of them connects with another, and what they tell each other
// of a third that is lost. The set-up and the mesh have it in common.

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "bimetal/net/tcp/connection.h"
#include "bimetal/net/tcp/dial.h"
#include "bimetal/net/tcp/listener.h"
#include "bimetal/net/tcp/tcp_mesh.h"

namespace bimetal::net {

class Peers {
 public:
  /// Error(InvalidArgument) for a rank that is not within the world.
  Peers(int rank, int size, TcpMeshOptions options);

  int rank() const noexcept { return rank_; }
  int size() const noexcept { return size_; }
  const TcpMeshOptions& options() const noexcept { return options_; }
  bool encrypted() const noexcept { return options_.encryption == Encryption::on; }

  /// Where they listen and what messages call their machines, both by rank: see
  /// TcpMeshBuilder::connect.
  void set_addresses(std::vector<std::vector<Endpoint>> addresses, std::vector<std::string> hosts);
  const std::vector<Endpoint>& addresses_of(int peer) const { return addresses_.at(index(peer)); }
  const std::string& host_of(int peer) const { return hosts_.at(index(peer)); }

  /// Whether this rank connects with `peer` at the start.
  bool connects_first(int peer) const noexcept;

  /// As far as their addresses tell.
  bool stays_on_host(int peer) const;

  /// "rank 1 (mac.local, 10.0.0.2:4711)", "rank 1 (10.0.0.2:4711)".
  std::string name_of(int peer, const std::string& address) const;

  /// A call of this rank to `peer`.
  DialRequest call_to(int peer, Deadline deadline) const;

  /// What a client that has proved the token is refused for, whatever its turn: another job, no
  /// rank of this world, or not this one wanted.
  std::optional<Refusal> refusal(const Hello& hello) const;

  /// The connection that has come of a call, or of a client's. `bytes_sent` outlives it.
  std::shared_ptr<Connection> made_with(int peer, DialedConnection dialed,
                                        std::atomic<std::uint64_t>& bytes_sent) const;
  std::shared_ptr<Connection> made_by(const AuthenticatedClient& client,
                                      asio::ip::tcp::socket socket,
                                      std::atomic<std::uint64_t>& bytes_sent) const;

 private:
  static std::size_t index(int peer) { return static_cast<std::size_t>(peer); }
  std::shared_ptr<Connection> make(int peer, asio::ip::tcp::socket socket,
                                   ConnectionOptions connection,
                                   std::atomic<std::uint64_t>& bytes_sent) const;

  const int rank_;
  const int size_;
  const TcpMeshOptions options_;
  const JobDigest job_;
  std::vector<std::string> hosts_;
  std::vector<std::vector<Endpoint>> addresses_;
};

/// What a listener does with those who come: in the set-up, and then in the mesh.
struct Door {
  Admit admit;
  std::function<void(asio::ip::tcp::socket, const AuthenticatedClient&)> on_connection;
};

/// Payload of a Loss frame: that its sender has lost the rank `loss.rank()`.
std::vector<std::byte> encode_loss(const Error& loss);

/// Throws Error(CorruptData), also for what names no rank of `size`.
Error decode_loss(std::span<const std::byte> payload, int size);

}  // namespace bimetal::net

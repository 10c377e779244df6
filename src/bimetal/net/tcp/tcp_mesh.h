#pragma once
// Mesh over TCP: one connection for a pair of ranks, all of them served by one thread (Asio). In a
// large world a pair connects when one of them first sends to the other. A rank that loses a peer
// tells so along its connections, so that all ranks know. Ranks not connected with that peer look
// for themselves.
//
// Every connection authenticates both ways with the job's token before any other byte is
// interpreted (net/handshake.h). If a peer's process ends, that is known at once, because the
// connection ends. A silent peer is suspected (its cable was pulled, its Wi-Fi is looking for
// another channel). That shows by a heartbeat every `heartbeat`, and by what TCP has acknowledged
// of it. The peer is lost after `peer_timeout`; until then TCP delivers everything later. A peer
// that is only stopped still acknowledges, and is left to the callers' deadlines.

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "bimetal/base/deadline.h"
#include "bimetal/net/endpoint.h"
#include "bimetal/net/mesh.h"
#include "bimetal/net/token.h"

namespace bimetal::net {

struct TcpMeshOptions {
  std::string job_id;                       ///< both ends must agree; a stranger's job is refused
  Token token;                              ///< may be empty only when every address is loopback
  Encryption encryption = Encryption::off;  ///< both ends must agree
  /// Where this rank accepts its peers, the address to prefer first; at least one must work.
  std::vector<std::string> listen_hosts{"127.0.0.1"};
  /// Ranks of a larger world connect with those near on the ring (near_on_ring) at first, and with
  /// others when they need to: each rank must be able to call every other one. The same on all.
  int complete_up_to = 16;
  std::chrono::milliseconds heartbeat{200};
  /// Nothing: 10 s, and 1 s for peers on this machine (silence.h).
  std::optional<std::chrono::milliseconds> peer_timeout{};
  /// Called every now and then while connect() waits for peers; an exception from it ends that.
  std::function<void()> while_connecting = {};
};

/// Two-phase set-up: bind first, so that the address can be published; connect when all are known.
class TcpMeshBuilder {
 public:
  /// Starts listening on a free port of each of options.listen_hosts.
  TcpMeshBuilder(int rank, int size, TcpMeshOptions options);
  ~TcpMeshBuilder();
  TcpMeshBuilder(const TcpMeshBuilder&) = delete;
  TcpMeshBuilder& operator=(const TcpMeshBuilder&) = delete;

  /// In the order of options.listen_hosts.
  std::vector<Endpoint> listening() const;

  /// Connects to lower ranks and accepts higher ones: all of them, or in a large world those near
  /// on the ring. peers[r] is where rank r listens, the address to try first at the front, and
  /// host_names[r] what messages call its machine (default: the first address's host). Strangers
  /// that connect meanwhile are refused and logged without disturbing the rest. Errors: Timeout
  /// naming each rank that is missing, the addresses tried and what failed there; Unauthorized,
  /// ProtocolMismatch, InvalidArgument naming the rank and address.
  std::unique_ptr<Mesh> connect(const std::vector<std::vector<Endpoint>>& peers, Deadline deadline,
                                std::vector<std::string> host_names = {}) &&;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace bimetal::net

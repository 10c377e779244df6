#pragma once
// From a store to a connected mesh: each rank publishes where it listens, waits for the others,
// and connects.

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "bimetal/base/error.h"
#include "bimetal/base/release.h"
#include "bimetal/net/advertise.h"
#include "bimetal/net/mesh.h"
#include "bimetal/net/silence.h"
#include "bimetal/net/tcp/tcp_mesh.h"
#include "bimetal/net/token.h"
#include "bimetal/rendezvous/store.h"

namespace bimetal::rendezvous {

/// Key prefix of the first membership epoch.
inline constexpr std::string_view kFirstMesh = "mesh/0";

struct BootstrapOptions {
  std::string job_id = "job";
  net::Token token;
  std::string host_name;    ///< for messages; empty: the system's host name
  std::string listen_host;  ///< where peers reach this rank; empty: at its interfaces
  /// Which interfaces those are: see net::addresses_to_advertise.
  std::string interfaces = net::interfaces_from_environment();
  /// Encryption of the connections between the ranks; all must want the same.
  net::Encryption encryption = net::encryption_from_environment();
  /// How long a peer may be silent before it is lost; nothing: see net::TcpMeshOptions.
  std::optional<std::chrono::milliseconds> peer_timeout = net::peer_timeout_from_environment();
  /// Version of this process's Bimetal: all must have the same.
  std::string release = std::string(bimetal::release());
  int complete_up_to = net::TcpMeshOptions().complete_up_to;  ///< see there
  std::string prefix{kFirstMesh};  ///< of keys; a new one for each membership epoch
};

/// The key for note_failure() of a rank that will not come any more, so that nobody waits for it.
/// The launcher notes it in the store at which the rank was to meet the others.
std::string fault_key(std::string_view prefix = kFirstMesh);

/// Collective. A world of one needs nobody: it opens no socket and leaves the store alone. If plain
/// connections go beyond loopback, rank 0 says so (net::note_if_plain).
///
/// Errors: Timeout that names every rank that did not join and those that did; InvalidArgument
/// when two processes claim one rank (names both) or disagree about the world size or encryption,
/// on every rank that is still waiting; an error noted under fault_key(), at once; ProtocolMismatch
/// if they run different versions of Bimetal (names both); those of TcpMeshBuilder::connect. Each
/// rank asks the store for rank 0's address, and for all that rank 0 has gathered.
std::unique_ptr<net::Mesh> connect_mesh(Store& store, int rank, int size,
                                        const BootstrapOptions& options, Deadline deadline);

// A failure left in the store, for those who would wait in vain otherwise: a process that has died
// cannot tell them, but who has started it, or has seen it go, can.

/// Leaves `failure` under `key`, unless there is one already: the first is the cause, later ones
/// follow from it. Errors of the store.
void note_failure(Store& store, std::string_view key, const Error& failure, Deadline deadline);

/// The error noted there by now. Errors of the store; CorruptData for something else.
std::optional<Error> noted_failure(Store& store, std::string_view key, Deadline deadline);

}  // namespace bimetal::rendezvous

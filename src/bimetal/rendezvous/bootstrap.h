#pragma once
// From a store to a connected mesh: each rank publishes where it listens, waits for the others,
// and connects.

#include <memory>
#include <string>

#include "bimetal/base/release.h"
#include "bimetal/net/advertise.h"
#include "bimetal/net/encryption.h"
#include "bimetal/net/mesh.h"
#include "bimetal/net/token.h"
#include "bimetal/rendezvous/store.h"

namespace bimetal::rendezvous {

struct BootstrapOptions {
  std::string job_id = "job";
  net::Token token;
  std::string host_name;    ///< for messages; empty: the system's host name
  std::string listen_host;  ///< where peers reach this rank; empty: at its interfaces
  /// Which interfaces those are: see net::addresses_to_advertise.
  std::string interfaces = net::interfaces_from_environment();
  /// Of the connections between the ranks; all must want the same.
  net::Encryption encryption = net::encryption_from_environment();
  /// Version of this process's Bimetal: all must have the same.
  std::string release = std::string(bimetal::release());
  std::string prefix = "mesh/0";  ///< key prefix; a new one for each membership epoch
};

/// Collective. A world of one needs nobody: it opens no socket and leaves the store alone.
///
/// Errors: Timeout that names every rank that did not join and those that did; InvalidArgument
/// when two processes claim one rank (names both) or disagree about the world size or encryption,
/// on every rank that is still waiting; ProtocolMismatch if they run different versions of Bimetal
/// (names both); those of TcpMeshBuilder::connect.
std::unique_ptr<net::Mesh> connect_mesh(Store& store, int rank, int size,
                                        const BootstrapOptions& options, Deadline deadline);

}  // namespace bimetal::rendezvous

#pragma once
// From a rank's place in the job to its group, over the project's own store or MPI.

#include <chrono>
#include <functional>
#include <memory>
#include <optional>

#include "bimetal/base/deadline.h"
#include "bimetal/comm/group.h"
#include "bimetal/launch/rank_environment.h"
#include "bimetal/launch/rank_places.h"
#include "bimetal/net/token.h"
#include "bimetal/rendezvous/store.h"

namespace bimetal::launch {

/// How a rank meets the others.
struct JoinOptions {
  net::Token token;  ///< needed as soon as ranks are on several machines
  std::chrono::milliseconds join_timeout{std::chrono::seconds(60)};  ///< for all ranks to be there
  /// How long a peer on another machine may be silent before it is lost. Nothing: what
  /// BIMETAL_PEER_TIMEOUT_S says, else 10 s, and 1 s on one machine.
  std::optional<std::chrono::milliseconds> peer_timeout = std::nullopt;
  comm::GroupOptions group;  ///< of the group of all ranks
};

/// Connects to the store that torchrun serves (StoreOwner::TorchAgent).
using TorchAgent =
    std::function<std::unique_ptr<rendezvous::Store>(const RankEnvironment&, Deadline)>;

/// The world group of this rank; returns on each rank when all have joined. Collective. Errors:
/// Timeout naming the ranks that are missing, Unauthorized for a wrong token or none where one is
/// needed, ProtocolMismatch, System for a port in use, Unsupported if torchrun's store is needed
/// and no `torch_agent` is given; those of net::make_mpi_mesh.
comm::Group meet(const RankEnvironment& env, const JoinOptions& options,
                 const TorchAgent& torch_agent = {});

/// As meet(), with torchrun's store where that is the job's: for programs built with torch.
comm::Group join_world(const RankEnvironment& env, const JoinOptions& options);

/// Collective over all processes that mpirun has started, for what only then becomes ranks that
/// meet by TCP. Rank, hosts and sizes are MPI's; rank 0 chooses the meeting point (an address of
/// its host, or MASTER_ADDR; a free port, or MASTER_PORT) and the job's token, unless it has one,
/// and gives them to the others. Returns the rank's variables. Errors: those of
/// net::make_mpi_mesh().
NamedValues meet_by_mpi(Deadline deadline);

/// The group of a process that works alone: world size 1, no sockets.
comm::Group single_process_world(const comm::GroupOptions& options = {});

}  // namespace bimetal::launch

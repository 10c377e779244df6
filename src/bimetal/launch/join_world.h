#pragma once
// From a rank's place in the job to its group: find the store, meet the other ranks, connect.

#include <chrono>

#include "bimetal/comm/group.h"
#include "bimetal/launch/rank_environment.h"
#include "bimetal/net/token.h"

namespace bimetal::launch {

struct JoinOptions {
  net::Token token;  ///< needed as soon as ranks are on several machines
  std::chrono::milliseconds join_timeout{std::chrono::seconds(60)};  ///< for all ranks to be there
  comm::GroupOptions group;
};

/// The world group of this rank; returns on each rank when all have joined. Collective. Errors:
/// Timeout naming the ranks that are missing, Unauthorized for a wrong token or none where one is
/// needed, ProtocolMismatch, System for a port in use.
comm::Group join_world(const RankEnvironment& env, const JoinOptions& options);

/// The group of a process that trains alone: world size 1, no sockets.
comm::Group single_process_world(const comm::GroupOptions& options = {});

}  // namespace bimetal::launch

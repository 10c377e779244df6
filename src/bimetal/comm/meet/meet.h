#pragma once
// From a store to a group whose ranks are connected, for ranks that something else has started:
// torch's process groups, and programs in other languages.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "bimetal/base/deadline.h"
#include "bimetal/comm/group.h"
#include "bimetal/net/endpoint.h"
#include "bimetal/rendezvous/store.h"

namespace bimetal::comm {

struct Meeting {
  int rank = 0;
  int size = 1;
  /// The prefix of keys in the store. Each group that meets there has another one. See prefix_for.
  std::string prefix;
  /// The members' ranks in the job's first group. Empty: this is that group.
  std::vector<std::uint64_t> members = {};
  /// The living first group of this process, whose connections a group with `members` shares.
  std::optional<Group> world = {};
};

/// A prefix for the group of that name. It tells the group's lives apart in a store that outlives
/// them: all members must have made a group of that name and size as often as this process.
/// Thread-safe.
std::string prefix_for(const std::string& group_name, int rank, int size);

/// The address at which the others reach this process. It is loopback if LOCAL_WORLD_SIZE says that
/// all ranks are on this machine. Otherwise it is the address towards the store's `server`. If the
/// store is no server (a file on a share, an engine's own), it is the one of BIMETAL_ADDRESS, or
/// else loopback.
std::string address_for_meeting(const std::optional<net::Endpoint>& server);

/// Collective among the `size` members. Where meeting.members is not empty and all of them have a
/// living first group, the new group shares its connections. Otherwise the ranks connect anew, at
/// the interfaces that BIMETAL_INTERFACE names, or where they reach the store. Their connections
/// are authenticated by the token of BIMETAL_TOKEN_FILE or BIMETAL_TOKEN, which all ranks must then
/// have. Without one they stay plain and on loopback: a token in the store would be known to all
/// who read the store.
///
/// Errors: those of rendezvous::connect_mesh and make_group, and Unauthorized where no rank has a
/// token and one is needed, or only some have one.
Group meet(rendezvous::Store& store, const Meeting& meeting, const GroupOptions& options,
           Deadline deadline);

}  // namespace bimetal::comm

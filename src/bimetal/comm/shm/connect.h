#pragma once
// How the ranks of a group find out which of them share memory: they try. Each makes a segment and
// tells all others where it is. Each opens the segments that it can, and tells whose they were.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "bimetal/comm/fabric.h"
#include "bimetal/comm/shm/segment.h"
#include "bimetal/comm/shm/team.h"
#include "bimetal/net/shm/shared_memory.h"

namespace bimetal::comm {

// The first message by which the ranks of a group find out which of them share memory
// (docs/protocol.md, "Finding shared memory").

/// The transport that a rank wants, and where its segment is.
struct Offer {
  Transport transport = Transport::automatic;
  bool made = false;         ///< a segment
  std::uint32_t island = 0;  ///< hash of its name; 0 for none
  std::uint64_t bytes = 0;   ///< of it
  net::SegmentAddress address;
};

std::vector<std::byte> encode_offer(const Offer& offer);

/// Error(CorruptData) for less or more than an offer. Its transport is as it came: ranks compare
/// it.
Offer decode_offer(std::span<const std::byte> bytes);

/// Gives every rank's message to every rank, in the order of the ranks. All are of one length.
using Exchange = std::function<std::vector<std::vector<std::byte>>(std::span<const std::byte> own)>;

/// The transport that this rank asks for.
struct ShareWish {
  Transport transport = Transport::automatic;
  std::string island = {};  ///< ranks of other names are left alone
};

struct SharedHost {
  Topology topology;
  std::unique_ptr<ShmTeam> team;  ///< of this rank's island; none if it is alone
};

/// Collective over a team: an arena of `bytes` for each rank, or none, on all of them, if some rank
/// cannot have it. Error(InvalidArgument), on every rank, if they ask for different sizes.
std::shared_ptr<const Arena> connect_arena(std::uint64_t number, int rank,
                                           const std::vector<int>& world_ranks, std::size_t bytes,
                                           const Exchange& exchange);

/// Collective over the group. `world_ranks[r]` is rank r's. Nothing that fails here on one rank
/// (no memory left, /proc out of sight) is an error: such a rank is alone. Errors: what `exchange`
/// throws; InvalidArgument, on every rank, if the ranks ask for different transports; Unsupported
/// if they ask for shm and cannot have it.
SharedHost connect_shared_host(std::uint32_t group, int rank, const std::vector<int>& world_ranks,
                               const ShareWish& wish, const Exchange& exchange);

}  // namespace bimetal::comm

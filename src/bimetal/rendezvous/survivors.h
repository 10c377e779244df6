#pragma once
// Who is left when a rank is lost: those who have seen it say so in the job's store, which whoever
// started them serves still. All but one make a world of their own.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "bimetal/base/deadline.h"
#include "bimetal/net/endpoint.h"
#include "bimetal/rendezvous/store.h"

namespace bimetal::rendezvous {

// What each rank publishes about itself in the store.

struct MemberRecord {
  int world_size = 0;
  std::string host;                      ///< name for messages
  std::uint64_t process = 0;             ///< the system's process id
  bool encrypted = false;                ///< whether it wants encrypted connections
  std::vector<net::Endpoint> listening;  ///< the address to prefer first; at least one
  std::string release;                   ///< version of its Bimetal; empty where it does not say
};

std::string encode_member(const MemberRecord& member);

/// Throws Error(CorruptData).
MemberRecord decode_member(std::string_view bytes);

/// "mac.local (process 4711)"
std::string describe(const MemberRecord& member);

std::uint64_t own_process_id();

struct Survivors {
  std::vector<int> ranks;  ///< in their order
  int lost = -1;           ///< the one that is not among them
};

/// Called by each rank that has lost another, with a `prefix` of its own for each life of the job;
/// returns when all of `size` ranks but one have called it. Errors: PeerLost at once where two have
/// ended by note_end(), naming them, or all others have found each other without this one; Timeout
/// naming who is missing; the store's.
Survivors find_survivors(Store& store, int rank, int size, std::string_view prefix,
                         Deadline deadline);

/// Whoever started a rank that has ended says so, lest others wait for it. Errors of the store.
void note_end(Store& store, std::string_view prefix, int rank, Deadline deadline);

}  // namespace bimetal::rendezvous

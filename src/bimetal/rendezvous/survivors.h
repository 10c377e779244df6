#pragma once
// Who is left when a rank is lost: those who have seen it say so in the job's store, which whoever
// started them serves still. All but one make a world of their own.

#include <string_view>
#include <vector>

#include "bimetal/base/deadline.h"
#include "bimetal/rendezvous/store.h"

namespace bimetal::rendezvous {

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

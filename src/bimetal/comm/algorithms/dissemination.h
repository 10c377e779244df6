#pragma once
// Barrier in ceil(log2(n)) rounds without a root (Hensgen, Finkel and Manber, "Two algorithms for
// barrier synchronization", 1988). After round k a rank knows, directly or indirectly, of 2^(k+1)
// ranks.

#include "bimetal/comm/mailbox/channel.h"

namespace bimetal::comm {

/// Returns on no rank before it has been called on all.
void dissemination_barrier(Channel& channel);

}  // namespace bimetal::comm

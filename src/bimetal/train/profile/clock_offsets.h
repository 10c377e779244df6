#pragma once
// By how much the clocks of a group's ranks differ, found out by messages.

#include <cstdint>
#include <functional>
#include <vector>

#include "bimetal/base/deadline.h"
#include "bimetal/comm/group.h"

namespace bimetal::train {

struct ClockOffset {
  std::int64_t ns = 0;        ///< the rank's clock less rank 0's
  std::int64_t error_ns = 0;  ///< the true one is no further away: half of the message's round trip
};

/// Nanoseconds since 1970 by this machine's clock.
std::int64_t wall_clock_ns();

/// By rank, the same on all of them; rank 0's is 0. Rank 0 asks each rank for the time, again and
/// again, and believes the quickest answer (Cristian, "Probabilistic clock synchronization",
/// Distributed Computing 3, 1989). Collective. Errors: the fabric's.
std::vector<ClockOffset> clock_offsets(comm::Group group, Deadline deadline,
                                       const std::function<std::int64_t()>& now = wall_clock_ns);

}  // namespace bimetal::train

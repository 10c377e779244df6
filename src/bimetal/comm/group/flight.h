#pragma once
// One call in flight.

#include <cstddef>
#include <memory>
#include <set>
#include <utility>
#include <vector>

#include "bimetal/base/deadline.h"
#include "bimetal/comm/call.h"
#include "bimetal/comm/group/timer.h"
#include "bimetal/comm/group/work_state.h"
#include "bimetal/comm/mailbox/transfers.h"

namespace bimetal::comm {

struct Flight {
  Flight(Call c, Deadline d) : call(std::move(c)), deadline(d) {}

  const Call call;
  const Deadline deadline;
  const Deadline::Clock::time_point begun = Deadline::Clock::now();
  const std::shared_ptr<Work::State> work = std::make_shared<Work::State>();
  Transfers transfers;
  std::vector<std::unique_ptr<std::byte[]>> scratch;  ///< of the thread that runs the call
  std::uint64_t record = 0;  ///< in the flight recorder; constant once the call has begun

  // Guarded by the group's lock:
  bool ended = false;
  Timer::Alarm alarm;
  bool probed = false;     ///< the other ranks have been told that this one waits
  std::set<int> heard_of;  ///< world ranks known to have made this call
};

}  // namespace bimetal::comm

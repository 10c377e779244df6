#pragma once
// The wait in shared memory of a call that its group watches.

#include <optional>

#include "bimetal/comm/mailbox/channel.h"
#include "bimetal/comm/shm/team.h"

namespace bimetal::comm {

class ChannelGuard : public WaitGuard {
 public:
  /// `channel` has the team's ranks.
  explicit ChannelGuard(Channel& channel) : channel_(channel) {}
  std::optional<Failure> still_waiting(int rank) override { return channel_.still_waiting(rank); }

 private:
  Channel& channel_;
};

}  // namespace bimetal::comm

#pragma once
// Collectives on so few bytes that only their latency counts. Each rank puts all that it gives into
// one slot and makes one step. Ranks that need it read it there. That is one exchange, whatever the
// operation.

#include <cstddef>

#include "bimetal/comm/call.h"
#include "bimetal/comm/reduce/reduce_operators.h"
#include "bimetal/comm/shm/team.h"

namespace bimetal::comm {

/// For one call on one rank: made, then collected.
class ShortCall {
 public:
  /// Whether `call` is one: the same answer on all ranks that make the same call.
  static bool suits(const Call& call, int team_size);

  /// Gives what this rank has to give.
  ShortCall(ShmTeam& team, Call call, Operands operands, WaitGuard& guard);

  /// Takes what this rank is to get, when those that it comes from are there.
  void collect(WaitGuard& guard);

  /// The same if they come at once or nearly so. False: nothing has happened, and collect() is to
  /// find out why.
  bool collect_at_once();

 private:
  static std::size_t bytes_given(const Call& call, int team_size);
  bool needs(int rank) const;
  bool gives() const;
  void take();

  ShmTeam& team_;
  const Call call_;
  const Operands operands_;
  std::size_t slot_;
  ShmTeam::Step step_;
};

}  // namespace bimetal::comm

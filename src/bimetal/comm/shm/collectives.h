#pragma once
// Collectives on data in memory that all ranks see. Each rank reads its inputs in everybody's
// memory, and in an all-reduce it writes its results there. Two steps are around that, and nothing
// goes through slots. Per rank, of n: an all-reduce reads and writes 1 for each byte of the buffer,
// a reduce-scatter reads 1 and writes its part, an all-gather copies the others' parts.
//
// Collectives on any number of bytes, through the slots. Data are cut into chunks, and while some
// ranks read one chunk, others write the next.
//
// Collectives on so few bytes that only their latency counts. Each rank puts all that it gives into
// one slot and makes one step. Ranks that need it read it there. That is one exchange, whatever the
// operation.

#include <cstddef>
#include <memory>
#include <span>

#include "bimetal/comm/call.h"
#include "bimetal/comm/reduce/reduce_kernels.h"
#include "bimetal/comm/shm/segment.h"
#include "bimetal/comm/shm/team.h"

namespace bimetal::comm {

/// Whether there is a way to run it so: all_reduce, reduce_scatter and all_gather.
bool others_reach(Operation operation);

/// The part of this rank's data that other ranks reach then; the rest may lie anywhere.
std::span<const std::byte> reached_by_others(const Call& call, const Operands& operands);

/// For operations that others_reach(). To be tried after ShmTeam::begin() and before anything else
/// of the call, by all ranks or none: each says where its data lie. False, on all ranks, if some
/// are not in the same arena as the others'; then nothing has been done. `arena` is the one with
/// the part of this rank's data that others reach, or none.
bool run_in_place(ShmTeam& team, const Call& call, const Operands& operands,
                  const std::shared_ptr<const Arena>& arena, WaitGuard& guard);

/// This rank's knowledge of the memory that it is called on.
struct InPlace {
  bool possible = false;               ///< some arena has been made, which all ranks know alike
  std::shared_ptr<const Arena> arena;  ///< that holds what others reach of this rank's (in_memory, above)
};

/// Runs `call` on this rank. All-reduce and reduce: every rank reduces its piece of each chunk, so
/// that the arithmetic and the bytes read are spread evenly (reduce-scatter and all-gather within
/// the chunk). Per rank and byte of an all-reduce over n ranks: (n-1)/n copied in, 1 read for the
/// reduction, 2/n written, (n-1)/n copied out.
/// Where what others reach of all ranks' data lies in one arena they do so there (in_memory, above): true.
bool run_pipelined(ShmTeam& team, const Call& call, const Operands& operands,
                   const InPlace& in_place, WaitGuard& guard);

/// For one call on one rank: made, then collected.
class ShortCall {
 public:
  /// Whether `call` is one: the same answer on all ranks that make the same call.
  static bool suits(const Call& call, int team_size);

  /// Gives this rank's input.
  ShortCall(ShmTeam& team, Call call, Operands operands, WaitGuard& guard);

  /// Takes this rank's output, once its parts are there.
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

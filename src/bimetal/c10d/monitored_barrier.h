#pragma once
// A barrier that tells who is missing.

#include <cstdint>
#include <string>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <utility>
#include <vector>

#include "bimetal/base/deadline.h"

namespace bimetal::c10d {

/// Every rank reports to the store; rank 0 waits for all and tells the others how it went. `number`
/// counts the barriers of the group from 1. `global_ranks[r]` is what messages call rank r (empty:
/// r itself). Error(Timeout) on every rank that has come, with the first rank missing as its rank
/// and all of them in its message; on ranks other than 0, if rank 0 itself is missing, naming it.
void monitored_barrier(::c10d::Store& store, int rank, int size, std::uint64_t number,
                       const std::vector<std::uint64_t>& global_ranks, Deadline deadline);

// How ranks agree, by the store, that the next call passes callbacks that block.

/// One vote for each number of a call: `go` if every rank has found its callbacks blocked before
/// any went on with one. For one thread per rank. Throws what the store throws.
class ReleaseVote {
 public:
  enum class Outcome { open, go, stay };

  /// The store is this group's alone, the same on all `size` ranks.
  ReleaseVote(c10::intrusive_ptr<::c10d::Store> store, int size)
      : store_(std::move(store)), size_(size) {}

  /// This rank is blocked there, and will not go on by itself before the outcome is known.
  Outcome cast(std::uint64_t number);
  Outcome look(std::uint64_t number);
  /// This rank can go on by itself: `stay`, unless all had cast their votes before.
  Outcome refuse(std::uint64_t number);

 private:
  Outcome decide(std::uint64_t number, const char* outcome);

  const c10::intrusive_ptr<::c10d::Store> store_;
  const int size_;
};

}  // namespace bimetal::c10d

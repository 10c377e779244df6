#pragma once
// A second copy of each rank's shard on another rank, so that it is not lost with its rank. Copies
// are stepped like their originals, by the same gradients. In a step they cost one message with a
// shard of gradients; sending parameters and states would cost three.

#include <torch/csrc/api/include/torch/types.h>

#include <chrono>
#include <span>
#include <vector>

#include "bimetal/comm/group.h"
#include "bimetal/parallel/shard/flat_plan.h"

namespace bimetal::parallel::shard {

/// Ranks whose shard is copied to one, and where that one's own is copied to; -1: none.
struct Buddies {
  int of = -1;
  int at = -1;
  friend bool operator==(const Buddies&, const Buddies&) = default;
};

/// The ranks with shards stand in a ring, in their order: the next one has the copy. A rank without
/// a shard has been spared one, and gets no copy either. No copies at all where fewer than two have
/// shards. Pure.
Buddies buddies_of(std::span<const FlatPlan> plans, int rank);

/// Use from one thread.
class ShardCopies {
 public:
  /// `plans` must outlive it. `group`: whose messages between two ranks nobody else uses.
  ShardCopies(const std::vector<FlatPlan>& plans, comm::Group group,
              std::chrono::milliseconds timeout);

  /// The rank whose copy is here; -1: none.
  int of() const noexcept { return buddies_.of; }
  /// Whether any rank's is anywhere: the same on every rank.
  bool any() const noexcept { return any_; }

  /// Of what lies as the shards do, by flat tensor: gives `own` to the rank with the copy, and
  /// returns what belongs to the one here, on the device of `own`; undefined where `own` is, or
  /// where none is here. Collective. Errors: the fabric's.
  std::vector<torch::Tensor> exchange(const std::vector<torch::Tensor>& own);

 private:
  const std::vector<FlatPlan>& plans_;
  comm::Group group_;
  std::chrono::milliseconds timeout_;
  Buddies buddies_;
  bool any_ = false;
};

}  // namespace bimetal::parallel::shard

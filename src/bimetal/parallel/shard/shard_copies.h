#pragma once
// A second copy of each rank's shard on another rank, so that it is not lost with its rank. Copies
// are stepped like their originals, by the same gradients. In a step they cost one message with a
// shard of gradients; sending parameters and states would cost three.

#include <torch/csrc/api/include/torch/types.h>

#include <chrono>
#include <cstddef>
#include <functional>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "bimetal/base/deadline.h"
#include "bimetal/c10d/island.h"
#include "bimetal/comm/group.h"
#include "bimetal/device/staging.h"
#include "bimetal/parallel/shard/flat_plan.h"

namespace bimetal::parallel::shard {

// Exchanges flat tensors of unequal parts between ranks, on any device.

/// Ranks that exchange them in one order: on their cards where they have an island, which is
/// in_order(), else by the fabric.
struct Peers {
  comm::Group group;
  std::shared_ptr<c10d::Island> island = nullptr;
};

/// One exchange: begin() it once its copies to the host have ended, in the order of the group's
/// calls; wait() ends it, where it is due. Move-only in effect: wait once. A thread that unwinds
/// before leaves it under way, and its memory is kept until its end.
class Exchange {
 public:
  using Call = std::function<comm::Work(Deadline deadline)>;

  Exchange() = default;
  /// `call` begins it once `copied` has been passed. `memory`: the tensors that it reads and
  /// writes. Data that has arrived in `host` is copied to `target`, unless these are the same
  /// memory.
  Exchange(Call call, device::CopyMark copied, std::vector<torch::Tensor> memory,
           torch::Tensor host = {}, torch::Tensor target = {});

  /// Whether begin() would not wait for a device.
  bool copied() const { return copied_.passed(); }
  /// Call it once. `deadline`: that of the copies and of the exchange. Errors: the fabric's;
  /// Timeout.
  Exchange& begin(Deadline deadline);
  /// Rethrows the fabric's errors. Without waiting for the device: later computations see the
  /// arrived values.
  void wait();
  comm::Work work() const { return under_way_ ? under_way_->work : comm::Work(); }  ///< once begun
  /// Whether it has arrived, for which it is waited at most until then. Once begun.
  bool arrives_by(Deadline deadline) const { return work().wait_until(deadline); }

 private:
  struct UnderWay {
    ~UnderWay();
    comm::Work work;
    std::vector<torch::Tensor> memory;
  };
  Call call_;
  device::CopyMark copied_;
  std::shared_ptr<UnderWay> under_way_;
  torch::Tensor host_, target_;
};

/// `flat`, with all ranks' counts, gets each rank's `own` part, converted to its type. On the CPU
/// nothing is copied meanwhile, but for that. Copies to the host are under way on return, by
/// streams of their own. On an island nothing is copied there. `peers` must outlive its begin().
Exchange gather_parts(Peers& peers, const torch::Tensor& own, const torch::Tensor& flat,
                      const std::vector<std::size_t>& counts);

/// `own`, a part of `flat` or memory of its own, gets the sum of the ranks' values in its place;
/// the rest of `flat` is scratch afterwards. Likewise.
Exchange reduce_parts(Peers& peers, const torch::Tensor& flat, const torch::Tensor& own,
                      const std::vector<std::size_t>& counts);

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

  /// Exchanges tensors that are laid out as the shards, by flat tensor. Gives `own` to the rank
  /// with the copy, and returns the tensors that belong to the copy here, on the device of `own`.
  /// They are undefined where `own` is, or where no copy is here. Collective. Errors: the fabric's.
  std::vector<torch::Tensor> exchange(const std::vector<torch::Tensor>& own);

 private:
  const std::vector<FlatPlan>& plans_;
  comm::Group group_;
  std::chrono::milliseconds timeout_;
  Buddies buddies_;
  bool any_ = false;
};

}  // namespace bimetal::parallel::shard

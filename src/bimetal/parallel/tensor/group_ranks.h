#pragma once
// Tensor ranks that are a group of the fabric.
//
// Cross-entropy of logits of which each tensor rank has its part of the vocabulary. No rank ever
// has all of them (Shoeybi et al. 2019, section 3). Two numbers for each target travel, and before
// them the largest logit.

#include <torch/csrc/api/include/torch/types.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "bimetal/c10d/island.h"
#include "bimetal/comm/group.h"
#include "bimetal/parallel/shard/shard_copies.h"
#include "bimetal/task/tensor_ranks.h"

namespace bimetal::parallel::tensor {

/// Sums run in the calling thread and block it: each needs the result before it can go on. Data on
/// a device goes from card to card where the ranks have an island, else through the host. One
/// thread at a time, the same on all ranks. They go through a group of their own, beside group(): a
/// rank that cannot come to the next sum ends that group (give_up()), so that nobody waits for it,
/// and all make another.
class GroupRanks final : public task::TensorRanks, public std::enable_shared_from_this<GroupRanks> {
 public:
  /// `weights`: how large the ranks' parts are, in proportion; the same on every rank. Collective.
  /// Error(InvalidArgument) unless there is one for each rank, greater than 0 and finite.
  /// `form_island`: empty on every rank, or on none.
  static std::shared_ptr<const GroupRanks> make(comm::Group group, std::vector<double> weights,
                                                std::chrono::milliseconds timeout,
                                                c10d::FormIsland form_island = {});

  /// balance::whole_parts() by the ranks' weights.
  task::Part part(std::int64_t pieces) const override;
  task::Part part(std::int64_t pieces, int rank) const;

  torch::Tensor shared(const torch::Tensor& x) const override;
  torch::Tensor sum(const torch::Tensor& x) const override;
  torch::Tensor cross_entropy_sum(const torch::Tensor& logits, const torch::Tensor& targets,
                                  std::int64_t vocabulary, std::int64_t ignored) const override;

  /// Overwrites `tensor`, which is contiguous, by the ranks' sum or largest, without a gradient.
  /// Errors: those of the fabric; Aborted after a give_up().
  void all_reduce(const torch::Tensor& tensor, comm::ReduceOp op) const;
  /// `whole`, contiguous and of one dimension, gets each rank's `own`, of counts[rank] elements, in
  /// their order. Errors: likewise.
  void gather(const torch::Tensor& own, const torch::Tensor& whole,
              const std::vector<std::size_t>& counts) const;
  /// `own`, contiguous, gets the sum of this rank's part in all ranks' `whole`, which is scratch
  /// afterwards.
  void reduce_scatter(const torch::Tensor& whole, const torch::Tensor& own,
                      const std::vector<std::size_t>& counts) const;

  /// This rank comes to no more sums: those that others wait in, now or later, end.
  void give_up(const std::string& why) const;
  /// Sums can be had again. Collective, after all have done with those before.
  void renew() const;

  const comm::Group& group() const noexcept { return group_; }
  const std::vector<double>& weights() const noexcept { return weights_; }
  std::chrono::milliseconds timeout() const noexcept { return timeout_; }
  /// Spent in exchanges so far: for the others, and on the way to them.
  double seconds() const noexcept { return seconds_.load(std::memory_order_relaxed); }

 private:
  GroupRanks(comm::Group group, std::vector<double> weights, std::chrono::milliseconds timeout,
             c10d::FormIsland form_island);
  void timed(const std::function<void(Deadline deadline)>& exchange) const;

  comm::Group group_;
  c10d::FormIsland form_island_;
  mutable shard::Peers sums_;
  std::vector<double> weights_;
  std::chrono::milliseconds timeout_;
  mutable std::atomic<double> seconds_ = 0;
};

// An exchange between ranks as a step of autograd's graph.

using Exchanged = std::function<torch::Tensor(const torch::Tensor&)>;

/// there(x), whose gradient by x is back(gradient by it), whose own is there() again: the second is
/// the first's adjoint. Both run without gradients of their own, and live as long as the graph.
torch::Tensor both_ways(const torch::Tensor& x, Exchanged there, Exchanged back);

/// The sum over `targets` [n], but for those that are `ignored`, of -log softmax(logits)[target].
/// `logits` [n, here.count]: of `here`, this rank's part; those of 16 bits are computed with in
/// float32. The same number on all ranks. Collective, in forward alone.
torch::Tensor vocabulary_loss_sum(const torch::Tensor& logits, const torch::Tensor& targets,
                                  task::Part here, std::int64_t ignored, const GroupRanks& ranks);

}  // namespace bimetal::parallel::tensor

#pragma once
// Parameters that lie one after the other in one flat tensor, whose memory can be let go while they
// are not used.

#include <torch/csrc/api/include/torch/types.h>

#include <vector>

#include "bimetal/parallel/shard/flat_plan.h"

namespace bimetal::parallel::shard {

/// The parameters stay the leaves that they were and become views of the flat tensor. Letting its
/// memory go swaps the memory below them, so that whatever autograd has saved of them finds the
/// values again once they are back; meanwhile nobody may read them. Use from one thread.
class FlatParameters {
 public:
  /// `parameters`: those of the plan's slots, in their order, on one device. Their values stay.
  /// `apart`: the part that `rank` keeps has memory of its own, so that the whole may go.
  FlatParameters(const FlatPlan& plan, const std::vector<torch::Tensor>& parameters, int rank,
                 bool apart);

  const torch::Tensor& whole() const noexcept { return whole_; }
  /// What this rank keeps; a view of the whole unless it lies apart.
  const torch::Tensor& own() const noexcept { return own_; }

  bool held() const noexcept { return held_; }
  /// Memory whose contents are anything, where there is none.
  void take_memory();
  void drop_memory();

 private:
  torch::Tensor whole_, own_;
  bool held_ = true;
};

}  // namespace bimetal::parallel::shard

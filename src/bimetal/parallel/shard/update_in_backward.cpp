// Updates of a ShardedModel in the middle of backward: of each flat tensor once its gradients are
// summed, which then go (Lv et al., "Full Parameter Fine-tuning for Large Language Models with
// Limited Resources", ACL 2024, section 3.2: LOMO, there for plain SGD).
//
// A flat tensor's sum is there when all ranks have sent its gradients, behind which none of them
// needs its old values any more: each has gathered it for this pass before it could compute these,
// and what a rank keeps lies apart from what it has gathered, or, of parameters that stay whole, is
// sent last of all. Which pass is the step's last the ranks agree on as each begins.

#include <torch/csrc/api/include/torch/types.h>

#include <algorithm>
#include <utility>

#include "bimetal/base/error.h"
#include "bimetal/parallel/shard/sharded_model_impl.h"

namespace bimetal::parallel::shard {

void ShardedModel::update_in_backward(std::function<void()> update) {
  if (impl_->options.level < 3 || impl_->options.copies || impl_->options.stage) {
    throw Error(ErrorCode::Unsupported,
                "updates in backward are of shards at level 3, without copies and stages");
  }
  impl_->update = std::move(update);
  traits_.updates_in_backward = true;
}

std::int32_t ShardedModel::Impl::passes_to_come(bool here) const {
  constexpr std::int32_t kMore = 2;  // for all that is known
  if (!here) return 0;
  return expected > 0 ? expected : kMore;
}

void ShardedModel::Impl::count_pass(std::int32_t to_come) {
  if (in_last_pass) {
    throw Error(ErrorCode::InvalidArgument,
                "a pass follows the step's last one, as expect_passes() had it, whose gradients "
                "have been used for updates");
  }
  if (expected > 0) --expected;
  if (to_come > 1) return;
  in_last_pass = true;
  gradients->hand_over(
      [this](std::size_t flat, const torch::Tensor& sum) { update_flat(flat, sum); });
}

/// A parameter that no rank has used is left alone, as on one device.
void ShardedModel::Impl::update_flat(std::size_t flat, const torch::Tensor& sum) {
  bool any = false;
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    if (flat_of[i] != flat || !gradients->used()[parameter_of[i]]) continue;
    set_gradient(i, sum);
    any = true;
  }
  if (any) update();
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    if (flat_of[i] == flat) set_gradient(i, {});
  }
  flats[flat].let_go_of_own();
}

}  // namespace bimetal::parallel::shard

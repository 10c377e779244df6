// Backward passes of a ShardedModel that a pipeline's stage runs.
//
// In the middle of their schedules stages must wait for each other only as the schedules say: the
// replicas of a stage may come to their passes at unlike places of a step, and have unlike numbers
// of them. So sums are begun, in the order of passes, and waited for at the step's end; the ranks
// agree on their number beside the first of them, and a rank that has fewer adds zeros. Nor may
// parameters come and go with the passes at level 3. All are gathered when a step begins, and freed
// behind its last pass.
//
// Updates of a ShardedModel in the middle of backward: each flat tensor is updated once its
// gradients are summed, which are then freed (Lv et al., "Full Parameter Fine-tuning for Large
// Language Models with Limited Resources", ACL 2024, section 3.2: LOMO, there for plain SGD).
//
// A flat tensor's sum is there when all ranks have sent its gradients, behind which none of them
// needs its old values any more: each has gathered it for this pass before it could compute these,
// and a rank's own part is separate from the gathered whole or, for parameters that stay whole, is
// sent last of all. The ranks agree at the start of each pass whether it is the step's last.

#include <torch/csrc/api/include/torch/types.h>

#include <algorithm>
#include <span>
#include <utility>

#include "bimetal/base/deadline.h"
#include "bimetal/base/error.h"
#include "bimetal/parallel/parameter_store.h"
#include "bimetal/parallel/shard/sharded_model_impl.h"

namespace bimetal::parallel::shard {

task::Model ShardedModel::Impl::waiting() {
  task::Model waits = model;
  for (std::size_t unit = 0; unit < waits.units.size(); ++unit) {
    auto& forward = waits.units[unit].forward;
    forward = [this, unit, then = std::move(forward)](const task::Values& inputs) {
      gathers->before_forward(unit);
      return then(inputs);
    };
  }
  return waits;
}

void ShardedModel::Impl::hold_parameters(bool wide) {
  if (gathers) gathers->begin_holding(wide);
}

void ShardedModel::Impl::let_go_of_parameters() {
  if (gathers) gathers->end_pass();
}

void ShardedModel::expect_passes(int count) {
  if (impl_->in_stage()) return impl_->expect_stage_passes(count);
  impl_->expected = count;
}

void ShardedModel::Impl::expect_stage_passes(int count) {
  most_passes = std::make_shared<std::vector<std::int32_t>>(1, count);
  stage_agreement = agreements.all_reduce(comm::buffer(std::span(*most_passes)),
                                          comm::ReduceOp::max, Deadline::after(options.timeout));
  // A thread that unwinds in the middle of a step leaves it under way.
  stage_agreement->on_done([kept = most_passes](const std::exception_ptr&) {});
}

void ShardedModel::Impl::run_stage_pass(const std::function<void()>& backward) {
  if (!backward) return;
  ++stage_passes;
  in_pass = true;
  gradients->during(backward);
  gradients->end_pass();
  in_pass = false;
}

/// Also where this rank has stopped in the middle of a pass, or before one.
void ShardedModel::Impl::join_other_passes() {
  if (in_pass) gradients->end_pass();
  in_pass = false;
  let_go_of_parameters();
  if (!stage_agreement) expect_stage_passes(0);
  marked_wait(
      span.waited, [] { return "what the other ranks do next"; },
      [&] { std::exchange(stage_agreement, {})->wait(); });
  gradients->end_others(most_passes->front() - stage_passes);
}

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

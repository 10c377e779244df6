// Backward passes of a ShardedModel that a pipeline's stage runs.
//
// Stages must not wait for each other in the middle of their schedules but for what these say: the
// replicas of a stage may come to their passes at unlike places of a step, and have unlike numbers
// of them. So sums are begun, in the order of passes, and waited for at the step's end; how many
// there are the ranks agree on beside the first of them, and whoever has fewer adds zeros. Nor may
// parameters come and go with the passes at level 3: they are all sent for when a step begins, and
// let go behind its last pass.

#include <span>
#include <utility>

#include "bimetal/base/deadline.h"
#include "bimetal/parallel/exchange_span.h"
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
  // Whoever unwinds in the middle of a step leaves it under way.
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

}  // namespace bimetal::parallel::shard

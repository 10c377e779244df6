// Backward passes of a ShardedModel that a pipeline's stage runs.
//
// Stages must not wait for each other in the middle of their schedules but for what these say: the
// replicas of a stage may come to their passes at unlike places of a step, and have unlike numbers
// of them. So sums are begun, in the order of passes, and waited for at the step's end; how many
// there are the ranks agree on beside the first of them, and whoever has fewer adds zeros.

#include <span>
#include <utility>

#include "bimetal/base/deadline.h"
#include "bimetal/base/error.h"
#include "bimetal/base/stopwatch.h"
#include "bimetal/parallel/shard/sharded_model_impl.h"

namespace bimetal::parallel::shard {

void ShardedModel::run_pass(const std::function<void()>& backward, bool last) {
  if (impl_->options.level > 1 && !impl_->in_stage()) {
    throw Error(ErrorCode::Unsupported,
                "passes that somebody else runs do not say when parameters are used, as level 3 "
                "must know, nor, unless they are a stage's, how many there are, as level 2 must: "
                "take zero.level 0 or 1");
  }
  impl_->passes.add(last);
  if (impl_->in_stage()) return impl_->run_stage_pass(backward);
  if (!last) return backward();
  impl_->reduce_during(backward ? backward : [] {});
}

void ShardedModel::expect_passes(int count) {
  if (impl_->in_stage()) impl_->expect_stage_passes(count);
}

void ShardedModel::Impl::expect_stage_passes(int count) {
  most_passes = std::make_shared<std::vector<std::int32_t>>(1, count);
  stage_agreement = agreements.all_reduce(comm::buffer(std::span(*most_passes)),
                                          comm::ReduceOp::max, Deadline::after(options.timeout));
  // Whoever unwinds in the middle of a step leaves it under way.
  stage_agreement->on_done([kept = most_passes](const std::exception_ptr&) {});
}

void ShardedModel::finish_passes() {
  if (impl_->in_stage()) impl_->join_other_passes();
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
  if (std::exchange(joined_others, true)) return;
  if (in_pass) gradients->end_pass();
  in_pass = false;
  if (!stage_agreement) expect_stage_passes(0);
  const Stopwatch waiting;
  std::exchange(stage_agreement, {})->wait();
  own_wait += waiting.seconds();
  gradients->end_others(most_passes->front() - stage_passes);
}

void ShardedModel::Impl::finish_stage_passes() {
  join_other_passes();
  gradients->complete_late();
}

}  // namespace bimetal::parallel::shard

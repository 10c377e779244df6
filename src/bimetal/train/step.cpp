#include "bimetal/train/step.h"

#include <utility>

#include "bimetal/base/stopwatch.h"
#include "bimetal/device/device.h"
#include "bimetal/train/profile/phase.h"

namespace bimetal::train {

TrainingStep::TrainingStep(const task::Task& task, const task::Model& model,
                           torch::optim::Optimizer& optimizer, comm::Group group,
                           StepOptions options)
    : optimizer_(optimizer),
      options_(options),
      parallel_(model, group, options.parallel),
      update_(parallel_, options.parallel.timeout, options.update),
      compute_(task, model, options.device,
               {.micro_batch = options.micro_batch,
                .precision = options.precision,
                .recompute = options.recompute}) {}

StepResult TrainingStep::run(std::int64_t step, const data::EpochSampler::Step& plan,
                             const std::function<task::Values()>& fetch, bool stop_requested,
                             progress::ShadowFigures shadow) {
  parallel_.begin_step(plan.weight(), update_.stages().loss_scale());
  auto mine = compute(plan, fetch);
  mine.stop_requested = stop_requested;
  mine.shadow = shadow;
  return update_.run(step, mine, optimizer_);
}

progress::RankFigures TrainingStep::compute(const data::EpochSampler::Step& plan,
                                            const std::function<task::Values()>& fetch) {
  const auto rank = parallel_.group().rank();
  const auto samples = plan.counts[static_cast<std::size_t>(rank)];
  Stopwatch watch;
  const auto fetch_untimed = [&] {
    auto batch = in_phase(Phase::kData, fetch);
    watch = Stopwatch();
    return batch;
  };
  const auto outcome =
      compute_.try_run(samples, fetch_untimed, backward_into(parallel_),
                       task::Draws::of(options_.seed, plan.epoch, plan.of_rank(rank)));
  progress::RankFigures mine{.batch = plan.weights[static_cast<std::size_t>(rank)],
                             .loss_sum = outcome.loss_sum,
                             .fit = outcome.fit};
  if (samples == 0 || outcome.fit != progress::Fit::fits) return mine;
  // The previous step's update belongs to what this device spends on a step.
  device::pause_for_speed(options_.speed, watch.seconds() + update_.update_seconds());
  mine.compute_seconds = watch.seconds() + update_.update_seconds();
  return mine;
}

}  // namespace bimetal::train

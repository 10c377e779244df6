#include "bimetal/train/step.h"

#include <utility>

#include "bimetal/base/stopwatch.h"
#include "bimetal/device/device.h"

namespace bimetal::train {

TrainingStep::TrainingStep(const task::Task& task, const task::Model& model,
                           torch::optim::Optimizer& optimizer, comm::Group group,
                           StepOptions options)
    : optimizer_(optimizer),
      options_(options),
      parallel_(model, group, options.parallel),
      update_(parallel_, options.parallel.timeout),
      compute_(task, model, options.device, options.micro_batch) {}

StepResult TrainingStep::run(std::int64_t step, const data::EpochSampler::Step& plan,
                             const std::function<task::Values()>& fetch, bool stop_requested,
                             progress::ShadowFigures shadow) {
  parallel_.begin_step(plan.weight());
  const auto rank = static_cast<std::size_t>(parallel_.group().rank());
  auto mine = compute(plan.counts[rank], plan.weights[rank], fetch);
  mine.stop_requested = stop_requested;
  mine.shadow = shadow;
  return update_.run(step, mine, optimizer_);
}

progress::RankFigures TrainingStep::compute(std::int64_t samples, std::int64_t weight,
                                            const std::function<task::Values()>& fetch) {
  Stopwatch watch;
  const auto fetch_untimed = [&] {
    auto batch = fetch();
    watch = Stopwatch();
    return batch;
  };
  const auto outcome = compute_.try_run(samples, fetch_untimed, backward_into(parallel_));
  progress::RankFigures mine{.batch = weight, .loss_sum = outcome.loss_sum, .fit = outcome.fit};
  if (samples == 0 || outcome.fit != progress::Fit::fits) return mine;
  // The previous step's update belongs to what this device spends on a step.
  device::pause_for_speed(options_.speed, watch.seconds() + update_.update_seconds());
  mine.compute_seconds = watch.seconds() + update_.update_seconds();
  return mine;
}

}  // namespace bimetal::train

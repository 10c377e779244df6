#include "bimetal/train/step.h"

#include <utility>

#include "bimetal/base/deadline.h"
#include "bimetal/base/error.h"
#include "bimetal/device/device.h"
#include "bimetal/parallel/tensor/tensor_store.h"
#include "bimetal/train/profile/phase.h"

namespace bimetal::train {

TrainingStep::TrainingStep(const task::Task& task, const task::Model& model,
                           torch::optim::Optimizer& optimizer, comm::Group group,
                           StepOptions options)
    : TrainingStep(
          task, model, optimizer,
          std::make_shared<parallel::ReplicatedModel>(model, std::move(group), options.parallel),
          options) {}

TrainingStep::TrainingStep(const task::Task& task, const task::Model& model,
                           torch::optim::Optimizer& optimizer,
                           std::shared_ptr<parallel::ParameterStore> store, StepOptions options)
    : optimizer_(optimizer),
      options_(options),
      store_(std::move(store)),
      lanes_(options_.stage ? options_.stage->lanes()
                            : Lanes(store_->group().size(), store_->group().rank())),
      update_(*store_, options.parallel.timeout, options.update),
      compute_(task, model, options.device,
               {.micro_batch = options.micro_batch,
                .precision = options.precision,
                .recompute = options.recompute,
                .repeats = store_->can_repeat()}) {
  update_.set_statistics(model.statistics());
  const auto& [limits, scaler] = options_.update;
  if (store_->updates_in_backward() && (scaler || limits.norm + limits.value > 0)) {
    throw Error(ErrorCode::Unsupported,
                "updates in backward go with neither a loss scale nor clipping: both want all "
                "gradients of a step at once");
  }
}

StepResult TrainingStep::run(std::int64_t step, const data::EpochSampler::Step& plan,
                             const std::function<task::Values()>& fetch, progress::Wishes wishes,
                             progress::ShadowFigures shadow) {
  if (!options_.stage) {
    const auto samples = plan.counts[static_cast<std::size_t>(lanes_.mine())];
    const Stopwatch waiting;
    passes_ = in_phase(Phase::kWait, [&] {
      return store_->agree_on_passes(static_cast<int>(compute_.pieces(samples)));
    });
    update_.has_waited(waiting.seconds());
  }
  store_->begin_step(plan.weight(), update_.stages().loss_scale());
  auto mine = compute(plan, fetch);
  mine.wishes = wishes;
  mine.shadow = shadow;
  auto result = update_.run(step, mine, optimizer_);
  if (options_.stage) options_.stage->learn(result.figures);
  return result;
}

progress::RankFigures TrainingStep::compute(const data::EpochSampler::Step& plan,
                                            const std::function<task::Values()>& fetch) {
  const auto lane = static_cast<std::size_t>(lanes_.mine());
  const auto samples = plan.counts[lane];
  Stopwatch watch;
  const auto fetch_untimed = [&] {
    auto batch = in_phase(Phase::kData, fetch);
    watch = Stopwatch();
    return batch;
  };
  const auto outcome =
      compute_share(samples, fetch_untimed,
                    task::Draws::of(options_.seed, plan.epoch, plan.of_rank(lanes_.mine())));
  progress::RankFigures mine{.batch = lanes_.counted(plan.weights[lane]),
                             .loss_sum = outcome.loss_sum,
                             .fit = outcome.fit};
  if (samples == 0 || outcome.fit != progress::Fit::fits) return mine;
  // The previous step's update belongs to what this device spends on a step, and waiting for others
  // does not.
  const auto spent = [&] {
    return watch.seconds() - store_->wait_seconds() + update_.update_seconds();
  };
  // A stage has paused after each of its actions. Of tensors in parts the sums are no reason to: in
  // them this rank waits for the others' pauses, and pauses would make each other longer.
  const auto* const parts = dynamic_cast<const parallel::tensor::TensorStore*>(store_.get());
  const double summing = parts != nullptr ? parts->sum_seconds() : 0;
  if (!options_.stage) device::pause_for_speed(options_.speed, spent() - summing);
  mine.compute_seconds = spent();
  mine.sum_seconds = summing;
  update_.has_waited(summing);
  return mine;
}

Compute::Outcome TrainingStep::compute_share(std::int64_t samples,
                                             const std::function<task::Values()>& fetch,
                                             const task::Draws& draws) {
  if (options_.stage) return options_.stage->try_run(samples, fetch, draws);
  if (samples > 0) store_->expect_passes(static_cast<int>(compute_.pieces(samples, passes_)));
  return compute_.try_run(samples, fetch, backward_into(*store_), draws, passes_);
}

}  // namespace bimetal::train

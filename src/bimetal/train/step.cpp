#include "bimetal/train/step.h"

#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "bimetal/base/deadline.h"
#include "bimetal/base/error.h"
#include "bimetal/device/device.h"
#include "bimetal/optim/fused.h"
#include "bimetal/train/profile/phase.h"

namespace bimetal::train {
namespace {

/// For a rank that has a whole replica, or a part of each of its tensors.
class ReplicaCompute final : public ShareCompute {
 public:
  /// `scale`: what losses are multiplied by, beside the store's scale, where it is defined as a
  /// step begins. Must outlive it.
  ReplicaCompute(const task::Task& task, const task::Model& model, const parallel::Sync& sync,
                 const StepOptions& options, bool waits, const torch::Tensor& scale)
      : ShareCompute({sync.group().size(), sync.group().rank()}),
        store_(sync.store()),
        scale_(scale),
        compute_(task, model, options.device,
                 {.micro_batch = options.micro_batch,
                  .precision = options.precision,
                  .channels_last = options.channels_last,
                  .recompute = options.recompute,
                  .repeats = sync.can_repeat(),
                  .waits = waits,
                  .graphs = options.graphs}) {}

  void prepare(std::int64_t samples) override {
    passes_ = store_.agree_on_passes(static_cast<int>(compute_.pieces(samples)));
  }

  Compute::Outcome try_run(std::int64_t samples, const std::function<task::Values()>& fetch,
                           const task::Draws& draws) override {
    if (samples > 0) store_.expect_passes(static_cast<int>(compute_.pieces(samples, passes_)));
    const auto backward = backward_into(store_);
    const auto scaled = [&](const torch::Tensor& loss_sum, bool last) {
      backward(loss_sum * scale_, last);
    };
    return compute_.try_run(samples, fetch, scale_.defined() ? Backward(scaled) : backward, draws,
                            passes_);
  }

 private:
  parallel::ParameterStore& store_;
  const torch::Tensor& scale_;
  Compute compute_;
  std::int64_t passes_ = 0;  ///< of the step under way, where ranks agree on them
};

}  // namespace

TrainingStep::TrainingStep(const task::Task& task, const task::Model& model,
                           torch::optim::Optimizer& optimizer, comm::Group group,
                           StepOptions options)
    : TrainingStep(
          task, model, optimizer,
          std::make_shared<parallel::ReplicatedModel>(model, std::move(group), options.parallel),
          options) {}

TrainingStep::TrainingStep(const task::Task& task, const task::Model& model,
                           torch::optim::Optimizer& optimizer, parallel::Sync sync,
                           StepOptions options)
    : optimizer_(optimizer),
      options_(options),
      sync_(std::move(sync)),
      share_(options_.stage ? options_.stage
                            : std::make_shared<ReplicaCompute>(task, model, sync_, options_,
                                                               !reads_later(), scale_)),
      update_(sync_, options.parallel.timeout, options.update),
      timer_(options_.device) {
  update_.set_statistics(model.statistics());
  if (decides_there()) update_.decide_on(options_.device);
  const auto& [limits, scaler] = options_.update;
  if (store().updates_in_backward() && (scaler || limits.norm + limits.value > 0)) {
    throw Error(ErrorCode::Unsupported,
                "updates in backward go with neither a loss scale nor clipping: both want all "
                "gradients of a step at once");
  }
}

/// Whether nobody needs the device's results before the update. False if parts of a model wait for
/// each other within a share, whose seconds then tell nothing, and if a pause follows.
bool TrainingStep::unwatched() const {
  const bool whole = sync_.store().in_shards() || !sync_.in_parts();
  return !options_.device.is_cpu() && !options_.stage && whole && sync_.can_repeat() &&
         !sync_.store().waits_in_passes() && options_.speed == 1 && !sync_.store().keeps_copies();
}

/// Whether the host needs the findings on gradients only a step later. That holds for a rank alone,
/// and for ranks with the same gradients on like devices, which find the same. Metal has one
/// stream, in which the host's reads come behind all its requests. Collective.
bool TrainingStep::decides_there() const {
  const auto& [limits, scaler] = options_.update;
  const bool skips =
      !scaler || (scaler->hysteresis == 1 &&
                  dynamic_cast<const optim::SkippableUpdate*>(&optimizer_) != nullptr);
  const bool here = unwatched() && !options_.device.is_mps() && !sync_.in_parts() && skips;
  auto group = sync_.group();
  if (group.size() == 1) return here;
  if (!scaler && limits.norm == 0) return false;
  constexpr std::int32_t kNot = -1;
  const auto kind = here ? static_cast<std::int32_t>(options_.device.type()) : kNot;
  std::vector<std::int32_t> most = {kind, -kind};
  group
      .all_reduce(comm::buffer(std::span(most)), comm::ReduceOp::max,
                  Deadline::after(options_.parallel.timeout))
      .wait();
  return most[0] != kNot && most[0] == -most[1];
}

/// Whether losses are read when the device has come to them anyhow. On Metal that is the case where
/// the host waits for the norm of the gradients.
bool TrainingStep::reads_later() const {
  const auto& [limits, scaler] = options_.update;
  return unwatched() && (!options_.device.is_mps() || scaler || limits.norm > 0);
}

StepResult TrainingStep::run(std::int64_t step, const data::EpochSampler::Step& plan,
                             const std::function<task::Values()>& fetch, progress::Wishes wishes,
                             progress::ShadowFigures shadow) {
  const Stopwatch waiting;
  in_phase(Phase::kWait,
           [&] { share_->prepare(plan.counts[static_cast<std::size_t>(share_->lanes().mine())]); });
  update_.has_waited(waiting.seconds());
  scale_ =
      update_.decides_there() ? update_.stages().scale_there(options_.device) : torch::Tensor();
  sync_.begin_step(plan.weight(), scale_.defined() ? 1 : update_.stages().loss_scale());
  auto mine = compute(plan, fetch);
  const Stopwatch held_up;
  in_phase(Phase::kWait, options_.before_update);
  update_.has_waited(held_up.seconds());
  mine.wishes = wishes;
  mine.shadow = shadow;
  auto result = update_.run(step, mine, optimizer_, std::exchange(unread_, std::nullopt));
  share_->learn(result.figures);
  return result;
}

progress::RankFigures TrainingStep::compute(const data::EpochSampler::Step& plan,
                                            const std::function<task::Values()>& fetch) {
  const auto& lanes = share_->lanes();
  const auto lane = static_cast<std::size_t>(lanes.mine());
  const auto samples = plan.counts[lane];
  Stopwatch watch;
  const auto fetch_untimed = [&] {
    auto batch = in_phase(Phase::kData, fetch);
    watch = Stopwatch();
    if (reads_later()) timer_.begin();
    return batch;
  };
  const auto outcome =
      share_->try_run(samples, fetch_untimed,
                      task::Draws::of(options_.seed, plan.epoch, plan.of_rank(lanes.mine())));
  progress::RankFigures mine{
      .batch = lanes.counted(plan.weights[lane]), .loss_sum = outcome.loss_sum, .fit = outcome.fit};
  if (samples == 0 || outcome.fit != progress::Fit::fits) return mine;
  if (outcome.losses.defined()) {
    timer_.end();
    unread_.emplace(outcome.losses, watch.seconds() - sync_.wait_seconds(), std::move(timer_));
    return mine;
  }
  // The previous step's update belongs to this device's time for a step; waiting for others does
  // not.
  const auto spent = [&] {
    return watch.seconds() - sync_.wait_seconds() + update_.update_seconds();
  };
  // The sums of tensors in parts are no reason to pause: in them this rank waits for the others'
  // pauses, and pauses would make each other longer.
  const double summing = sync_.unit_seconds();
  device::pause_for_speed(options_.speed, spent() - summing);
  mine.compute_seconds = spent();
  mine.sum_seconds = summing;
  update_.has_waited(summing);
  return mine;
}

}  // namespace bimetal::train

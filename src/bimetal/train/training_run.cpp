// What a run is made of, in the order of its start.

#include "bimetal/train/training_run.h"

#include <fmt/format.h>
#include <torch/csrc/api/include/torch/types.h>

#include <algorithm>
#include <utility>

#include "bimetal/base/deadline.h"
#include "bimetal/c10d/form_islands.h"
#include "bimetal/checkpoint/checkpoint_folder.h"
#include "bimetal/checkpoint/starting_point.h"
#include "bimetal/optim/optimizers.h"
#include "bimetal/train/gradient_compression.h"

namespace bimetal::train {

TrainingRun::TrainingRun(const job::JobConfig& job, comm::Group group,
                         const TrainerOptions& options, progress::Observer& observer)
    : job_(job),
      options_(options),
      observer_(observer),
      group_(std::move(group)),
      deterministic_(job_.train),
      place_(choose_place(job_, options_)),
      task_(load_shared_task(group_, job_, options_, observer_)),
      mesh_(make_mesh(group_, job_.mesh)),
      replicas_(group_, mesh_),
      sampler_(data::make_sampler(*task_->training(), job_.train.seed,
                                  std::max<std::int64_t>(1, job::sample_group(job_)))),
      memory_(group_, job_, options_, place_, *task_),
      precisions_(group_, job_, options_.worker, place_, *task_, observer_),
      stages_(plan_stages(job_, mesh_, *task_, unit_probe(), batch_weight(), memory_, observer_)),
      lanes_(stages_.mesh ? Lanes(stages_.mesh->shape(), group_.rank())
                          : Lanes(replicas_.group().size(), replicas_.group().rank())),
      balancer_(measure_devices()),
      trained_(job_, group_, *task_, make_starting_model(job_, task_, place_), options_.resume,
               observer_, parallel_options(), weigh_shards(), mesh_,
               stages_.mesh ? stages_.cuts : ChosenCuts{{0}, weigh_parts()},
               precisions_.half_of_all()),
      offload_(job_, trained_, observer_),
      state_(trained_.state()),
      planned_steps_(checkpoint::planned_steps(job_.train, task_->training()->size(), state_)),
      computed_(*task_, trained_.tensor_ranks()),
      stage_(make_stage_compute(job_, computed_, stages_, trained_, unit_probe())),
      step_(computed_, trained_.model(), trained_.optimizer(), trained_.store(), step_options()),
      feed_(task_->training(), sampler(), lanes_.mine(), job_.train.global_batch, job_.train.epochs,
            place_.device),
      journal_(balancer_, lanes_, job_.parallel.balance,
               {.epochs = job_.train.epochs,
                .steps = planned_steps_,
                .global_batch = batch_weight(),
                .counts = task_->counts()}),
      loss_trend_(state_.step == 0),
      shadow_(job_.train, *task_, probe_options()),
      profiler_(group_, options_.profile, place_.device,
                fmt::format("{}{}, {}", stages_.mesh ? stages_.name_of(group_.rank()) + ", " : "",
                            options_.host_name, place_.device.str()),
                milliseconds_of(job_.parallel.timeout_s)),
      saved_step_(state_.step),
      evaluated_step_(-1),
      best_(group_.rank() == 0 && job_.checkpoint.keep_best ? job_.checkpoint.dir : "",
            state_.step),
      apart_(job_, group_) {
  require_one_precision(mesh_.get(), precisions_.mine(),
                        Deadline::after(milliseconds_of(job_.parallel.timeout_s)));
  const auto& described = task_->description();
  if (const auto other = checkpoint::other_normalisation(state_.model, described)) {
    observer_.on_notice(*other);
  }
  state_.model = described;
  if (state_.step > 0 && group_.rank() == 0 && !job_.checkpoint.dir.empty()) {
    // The checkpoint that it goes on from may be the one that its last evaluation is of.
    const auto path = checkpoint::checkpoint_path(job_.checkpoint.dir, state_.step);
    if (std::filesystem::is_directory(path)) saved_path_ = path;
  }
  take_error_feedback();
  go_on_scaling();
}

void TrainingRun::go_on_scaling() {
  auto& scaler = step_.stages().scaler();
  if (scaler && state_.loss_scaler) scaler->restore(*state_.loss_scaler);
}

void TrainingRun::take_error_feedback() {
  if (step_.parallel().set_error_feedback(std::exchange(state_.error_feedback, {}), state_.step)) {
    return;
  }
  observer_.on_notice(
      "the checkpoint's error feedback is of other buckets or of a compressed job: it is dropped");
}

ProbeOptions TrainingRun::probe_options() const {
  return {.device = place_.device,
          .dtype = place_.dtype,
          .precision = precisions_.mine(),
          .speed = options_.worker.speed,
          .update = job_.zero.level == 0};
}

/// What was planned with; speeds are known by now.
std::vector<double> TrainingRun::weigh_shards() {
  if (job_.zero.shards == "memory" && job_.zero.weights.empty() && !memory_.shards().empty()) {
    return memory_.shards();
  }
  if (!products_.empty()) return products_;
  if (!mesh_) return shard_weights(job_, group_, place_.device, alone_);
  return shard_weights(job_, mesh_->replicas(), place_.device, replicas_.of_this_part(alone_));
}

/// Without stages; speeds are known by now.
parallel::PartWeights TrainingRun::weigh_parts() const {
  return part_weights(job_.mesh, mesh_ ? mesh_->shape() : parallel::MeshShape{}, alone_);
}

UnitProbe TrainingRun::unit_probe() const {
  return {.device = place_.device,
          .dtype = place_.dtype,
          .precision = precisions_.mine(),
          .speed = options_.worker.speed};
}

/// A rehearsal has a model of its own: where whole gradients are too much, the first steps tell.
balance::Balancer TrainingRun::measure_devices() {
  // No memory plan here for a cut model: choosing the cuts has planned stages, and `bimetal plan`
  // shows the memory of tensors in parts.
  const bool cut = stages_.mesh || replicas_.in_parts();
  const bool steps = !in_pieces() && !stages_.mesh;
  if (!steps && job_.zero.level > 0 && job_.zero.shards == "speed" && job_.zero.weights.empty()) {
    observer_.on_phase("measuring devices");
    products_ =
        probe_products(mesh_ ? mesh_->replicas() : group_, place_.device, options_.worker.speed);
  }
  if (!cut) memory_.plan(precisions_.mine(), batch_weight(), products_, observer_);
  std::vector<balance::Device> devices(
      static_cast<std::size_t>(replicas_.in_parts() ? group_.size() : lanes_.count()));
  if (steps) {
    observer_.on_phase("measuring devices");
    devices = probe_devices(group_, job_.train, *task_, probe_options());
  }
  memory_.note_peak();
  for (const auto& device : devices) alone_.push_back(device.cost.rate(batch_weight()));
  // What replicas of uneven stages get of a step is no matter of shares: see Dealer.
  const bool dealt = stages_.mesh && !stages_.mesh->shape().even();
  return balance::Balancer({.policy = dealt ? balance::Policy::Equal : job_.parallel.balance,
                            .fixed_weights = job_.parallel.weights,
                            .global_batch = batch_weight()},
                           replicas_.devices(devices));
}

/// The ranks of a replica compute the same micro-batches, on whatever kinds of devices.
std::int64_t TrainingRun::limit_of_parts() const {
  const MicroBatch own(job_.train.micro_batch, place_.device,
                       task::typical_weight(*task_->training()));
  return least_limit(replicas_.world(), own,
                     Deadline::after(milliseconds_of(job_.parallel.timeout_s)));
}

StepOptions TrainingRun::step_options() const {
  StepOptions options;
  options.device = place_.device;
  options.speed = options_.worker.speed;
  options.micro_batch = replicas_.in_parts() ? limit_of_parts() : job_.train.micro_batch;
  options.seed = job_.train.seed;
  options.precision = precisions_.mine();
  options.update.limits = optim::limits_of(job_.train);
  options.update.scaler = precisions_.scaler();
  options.recompute = job_.train.recompute;
  options.parallel.timeout = milliseconds_of(job_.parallel.timeout_s);
  options.stage = stage_;
  return options;
}

parallel::ReplicatedModelOptions TrainingRun::parallel_options() const {
  return {.bucket_bytes = static_cast<std::size_t>(job_.parallel.bucket_mb * (1 << 20)),
          .timeout = milliseconds_of(job_.parallel.timeout_s),
          .compression = gradient_compression(job_, replicas_.group().size()),
          .island = find_island()};
}

/// Neither a compressed exchange, which needs each rank's own gradients, nor shards and parts use
/// islands.
std::shared_ptr<c10d::Island> TrainingRun::find_island() const {
  const bool apart = job_.compression.gradients != "none" || job_.zero.level > 0 ||
                     replicas_.in_parts() || stages_.mesh;
  if (apart || job_.fabric.islands == "off") return nullptr;
  return c10d::form_islands(group_, place_.device, milliseconds_of(job_.parallel.timeout_s));
}

data::EpochSampler TrainingRun::sampler() const {
  auto sampler = sampler_;
  sampler.seek(state_.position);
  return sampler;
}

}  // namespace bimetal::train

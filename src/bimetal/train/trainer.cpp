#include "bimetal/train/trainer.h"

#include <fmt/format.h>
#include <torch/torch.h>

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "bimetal/balance/balancer.h"
#include "bimetal/base/deadline.h"
#include "bimetal/base/error.h"
#include "bimetal/c10d/form_islands.h"
#include "bimetal/checkpoint/starting_point.h"
#include "bimetal/data/batch_feed.h"
#include "bimetal/optim/optimizers.h"
#include "bimetal/optim/schedule.h"
#include "bimetal/predict/evaluate.h"
#include "bimetal/progress/together.h"
#include "bimetal/progress/worker_summary.h"
#include "bimetal/train/choose_precision.h"
#include "bimetal/train/deterministic.h"
#include "bimetal/train/error_of.h"
#include "bimetal/train/gradient_compression.h"
#include "bimetal/train/idle_ranks.h"
#include "bimetal/train/measure/memory_check.h"
#include "bimetal/train/measure/shadow_batch.h"
#include "bimetal/train/measure/step_probe.h"
#include "bimetal/train/profile/step_profiler.h"
#include "bimetal/train/random_states.h"
#include "bimetal/train/rank_journal.h"
#include "bimetal/train/setup.h"
#include "bimetal/train/step.h"
#include "bimetal/train/trained_model.h"

namespace bimetal::train {
namespace {

/// The whole of one rank's run. Its members are made in the order of their declaration, which is
/// the order of a run's start.
class TrainingRun {
 public:
  TrainingRun(const job::JobConfig& job, comm::Group group, const TrainerOptions& options,
              progress::Observer& observer);
  progress::Report run();

 private:
  ProbeOptions probe_options() const;
  balance::Balancer measure_devices();
  StepOptions step_options() const;
  parallel::ReplicatedModelOptions parallel_options() const;
  std::shared_ptr<c10d::Island> find_island() const;
  data::EpochSampler sampler() const;
  /// Of a global batch on average: what shares add up to.
  std::int64_t batch_weight() const { return sampler_.mean_weight(job_.train.global_batch); }

  /// No rank need have the memory for a whole model's gradients.
  bool in_pieces() const { return job_.zero.level >= 2; }

  bool next_step();
  progress::ShadowFigures measure_beside_work(const data::BatchFeed::Plan& plan);
  void learn_shares(std::span<const progress::RankFigures> figures);
  void repeat(const data::BatchFeed::Plan& plan, const StepResult& result);
  void record(const data::BatchFeed::Plan& plan, const StepResult& result);
  void introduce_workers();
  void evaluate_now();
  void save_now();
  void take_error_feedback();
  void go_on_scaling();

  const job::JobConfig& job_;
  const TrainerOptions& options_;
  progress::Observer& observer_;
  comm::Group group_;
  Deterministic deterministic_;
  device::Place place_;
  std::shared_ptr<const task::JobTask> task_;
  data::EpochSampler sampler_;  ///< at the start of the first epoch
  MemoryCheck memory_;
  RankPrecisions precisions_;
  balance::Balancer balancer_;
  TrainedModel trained_;
  checkpoint::TrainingState& state_;
  std::int64_t planned_steps_;
  TrainingStep step_;
  data::BatchFeed feed_;
  RankJournal journal_;
  ShadowBatch shadow_;
  StepProfiler profiler_;

  std::int64_t saved_step_, evaluated_step_;
  DrawsApart apart_;
  IdleRanks idle_;
  bool interrupted_ = false;
};

TrainingRun::TrainingRun(const job::JobConfig& job, comm::Group group,
                         const TrainerOptions& options, progress::Observer& observer)
    : job_(job),
      options_(options),
      observer_(observer),
      group_(std::move(group)),
      deterministic_(job_.train),
      place_(choose_place(job_, options_)),
      task_(load_shared_task(group_, job_, options_, observer_)),
      sampler_(data::make_sampler(*task_->training(), job_.train.seed)),
      memory_(group_, job_, options_, place_, *task_),
      precisions_(group_, job_, options_.worker, place_, *task_, observer_),
      balancer_(measure_devices()),
      trained_(job_, group_, *task_, make_seeded_model(*task_, job_.train.seed, place_),
               options_.resume, observer_, parallel_options(),
               shard_weights(job_, group_, place_.device, alone_rates(balancer_))),
      state_(trained_.state()),
      planned_steps_(checkpoint::planned_steps(job_.train, task_->training()->size(), state_)),
      step_(*task_, trained_.model(), trained_.optimizer(), trained_.store(), step_options()),
      feed_(task_->training(), sampler(), group_.rank(), job_.train.global_batch, job_.train.epochs,
            place_.device),
      journal_(balancer_, job_.parallel.balance,
               {.epochs = job_.train.epochs,
                .steps = planned_steps_,
                .global_batch = batch_weight(),
                .counts = task_->counts()}),
      shadow_(job_.train, *task_, probe_options()),
      profiler_(group_, options_.profile, place_.device,
                fmt::format("{}, {}", options_.host_name, place_.device.str()),
                milliseconds_of(job_.parallel.timeout_s)),
      saved_step_(state_.step),
      evaluated_step_(-1),
      apart_(job_, group_) {
  state_.model = task_->description();
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

/// A rehearsal has a model of its own: where whole gradients are too much, the first steps tell.
balance::Balancer TrainingRun::measure_devices() {
  memory_.plan(precisions_.mine(), batch_weight(), observer_);
  std::vector<balance::Device> devices(static_cast<std::size_t>(group_.size()));
  if (!in_pieces()) {
    observer_.on_phase("measuring devices");
    devices = probe_devices(group_, job_.train, *task_, probe_options());
  }
  return balance::Balancer({.policy = job_.parallel.balance,
                            .fixed_weights = job_.parallel.weights,
                            .global_batch = batch_weight()},
                           std::move(devices));
}

StepOptions TrainingRun::step_options() const {
  StepOptions options;
  options.device = place_.device;
  options.speed = options_.worker.speed;
  options.micro_batch = job_.train.micro_batch;
  options.seed = job_.train.seed;
  options.precision = precisions_.mine();
  options.update.limits = optim::limits_of(job_.train);
  options.update.scaler = precisions_.scaler();
  options.recompute = job_.train.recompute;
  options.parallel.timeout = milliseconds_of(job_.parallel.timeout_s);
  return options;
}

parallel::ReplicatedModelOptions TrainingRun::parallel_options() const {
  return {.bucket_bytes = static_cast<std::size_t>(job_.parallel.bucket_mb * (1 << 20)),
          .timeout = milliseconds_of(job_.parallel.timeout_s),
          .compression = gradient_compression(job_, group_.size()),
          .island = find_island()};
}

/// Neither a compressed exchange, which needs each rank's own gradients, nor shards use islands.
std::shared_ptr<c10d::Island> TrainingRun::find_island() const {
  const bool apart = job_.compression.gradients != "none" || job_.zero.level > 0;
  if (apart || job_.fabric.islands == "off") return nullptr;
  return c10d::form_islands(group_, place_.device, milliseconds_of(job_.parallel.timeout_s));
}

data::EpochSampler TrainingRun::sampler() const {
  auto sampler = sampler_;
  sampler.seek(state_.position);
  return sampler;
}

progress::Report TrainingRun::run() {
  introduce_workers();
  observer_.on_phase("training");
  trained_.model().train();
  idle_.tell(balancer_.shares(), job_.train.global_batch, observer_);
  apart_.begin(state_.step);
  feed_.draw(balancer_.shares());
  journal_.start_clock();
  while (!interrupted_ && next_step()) {
  }
  memory_.note_peak();
  if (!profiler_.finish()) {
    observer_.on_notice(
        "none of the steps that were to be profiled was made: this run ended before, or went on "
        "after them");
  }
  save_now();
  if (!interrupted_) evaluate_now();
  auto report = journal_.report(group_, state_.step, options_.host_name, place_.device.str(),
                                milliseconds_of(job_.parallel.timeout_s));
  report.interrupted = interrupted_;
  precisions_.report(report, step_.stages().scaler());
  memory_.report(report);
  return report;
}

/// False when the job is done.
bool TrainingRun::next_step() {
  if (!feed_.next() || state_.step >= planned_steps_) return false;
  const auto plan = *feed_.next();
  const auto fetch = [this] {
    auto batch = feed_.take();
    feed_.draw(balancer_.shares());
    return batch;
  };
  const bool stop = options_.stop_requested && options_.stop_requested();
  const auto step = state_.step + 1;
  optim::set_learning_rate(trained_.optimizer(),
                           optim::learning_rate_at(job_.train, step, planned_steps_));
  const auto shadow = measure_beside_work(plan);
  profiler_.begin(step);
  const auto result = step_.run(step, plan.samples, fetch, stop, shadow);
  if (profiler_.end(step)) journal_.start_clock();
  if (!result.applied) {
    repeat(plan, result);
    return true;
  }
  record(plan, result);
  learn_shares(result.figures);
  interrupted_ = std::ranges::any_of(result.figures, &progress::RankFigures::stop_requested);
  const auto every = job_.checkpoint.every_steps;
  if (plan.ends_epoch || (every > 0 && state_.step % every == 0)) save_now();
  if (plan.ends_epoch && !interrupted_) evaluate_now();
  return true;
}

/// What this rank has measured since the last step, and the start of another shadow batch where it
/// has nothing else to do.
progress::ShadowFigures TrainingRun::measure_beside_work(const data::BatchFeed::Plan& plan) {
  const auto rank = static_cast<std::size_t>(group_.rank());
  const auto measured = shadow_.take();
  const auto wanted = in_pieces() ? 0 : balancer_.shadows()[rank];
  if (plan.samples.counts[rank] > 0) {
    shadow_.rest();
  } else if (wanted > 0) {
    shadow_.begin(wanted);
  }
  return measured;
}

void TrainingRun::record(const data::BatchFeed::Plan& plan, const StepResult& result) {
  ++state_.step;
  state_.position = plan.after;
  if (const auto text = result.skipped ? step_.stages().notice() : std::nullopt) {
    observer_.on_notice(*text);
  }
  observer_.on_step(journal_.add(state_.step, plan, result));
  apart_.look(observer_);
}

/// Every rank feeds its balancer with the same figures, and so holds the same shares.
void TrainingRun::learn_shares(std::span<const progress::RankFigures> figures) {
  std::vector<balance::StepFigures> learnt;
  for (const auto& rank : figures) {
    learnt.push_back({.batch = rank.batch,
                      .compute_seconds = rank.compute_seconds,
                      .out_of_memory = rank.fit == progress::Fit::too_large,
                      .shadow_batch = rank.shadow.batch,
                      .shadow_seconds = rank.shadow.seconds});
  }
  if (balancer_.observe(learnt)) {
    idle_.tell(balancer_.shares(), job_.train.global_batch, observer_);
  }
}

/// What is done about a rank's lack of memory.
std::string remedy(const progress::RankFigures& rank, std::int64_t cap) {
  switch (rank.fit) {
    case progress::Fit::try_recomputing: return "it computes activations again for backward";
    case progress::Fit::try_smaller_pieces: return "it computes them in smaller micro-batches";
    case progress::Fit::too_large: return fmt::format("its share is capped at {}", cap);
    case progress::Fit::fits: break;
  }
  return {};
}

/// The same samples again, after one rank or several ran out of memory. Only a rank that cannot
/// compute in smaller pieces loses a part of its share.
void TrainingRun::repeat(const data::BatchFeed::Plan& plan, const StepResult& result) {
  journal_.add_repeated(result);
  const auto too_large = [](const progress::RankFigures& rank) {
    return rank.fit == progress::Fit::too_large;
  };
  if (std::ranges::any_of(result.figures, too_large)) learn_shares(result.figures);
  for (std::size_t rank = 0; rank < result.figures.size(); ++rank) {
    const auto& figures = result.figures[rank];
    if (figures.fit == progress::Fit::fits) continue;
    observer_.on_notice(fmt::format("rank {} ran out of memory on {} samples: {}", rank,
                                    figures.batch, remedy(figures, balancer_.devices()[rank].cap)));
  }
  feed_.rewind(plan.before);
  feed_.draw(balancer_.shares());
}

void TrainingRun::introduce_workers() {
  const progress::WorkerSummary mine{.host = options_.host_name, .device = place_.device.str()};
  std::vector<progress::WorkerPlace> places;
  for (auto& summary :
       progress::gather_summaries(group_, mine, milliseconds_of(job_.parallel.timeout_s))) {
    places.push_back({std::move(summary.host), std::move(summary.device)});
  }
  observer_.on_workers(places);
}

void TrainingRun::evaluate_now() {
  if (!job_.train.evaluate || !task_->evaluation() || evaluated_step_ == state_.step) return;
  evaluated_step_ = state_.step;
  const auto result = predict::evaluate(*task_, trained_.model(), group_, alone_rates(balancer_),
                                        {.device = place_.device,
                                         .speed = options_.worker.speed,
                                         .timeout = milliseconds_of(job_.parallel.timeout_s),
                                         .computed = [this] { trained_.end_passes(); }});
  journal_.add_evaluation(state_.step, result);
  observer_.on_evaluated(state_.position.epoch + 1, result);
  journal_.start_clock();
}

void TrainingRun::save_now() {
  if (saved_step_ == state_.step) return;
  saved_step_ = state_.step;
  state_.shares = balancer_.shares();
  const auto busiest = std::ranges::max_element(state_.shares) - state_.shares.begin();
  step_.broadcast_buffers(static_cast<int>(busiest));
  trained_.require_finite();
  if (!job_.checkpoint.dir.empty()) {
    state_.torch_rng = checkpoint::random_state();
    // The job's, not the last step's, which follows from the step's number.
    optim::set_learning_rate(trained_.optimizer(), optim::full_rate(job_.train));
    if (const auto& scaler = step_.stages().scaler()) state_.loss_scaler = scaler->state();
    state_.error_feedback = step_.parallel().error_feedback();
    const auto path = trained_.save();
    state_.error_feedback.clear();
    observer_.on_checkpoint(path.string(), state_.step);
  }
  journal_.start_clock();
}

/// Whether all ranks throw this error by themselves, because they have seen the same figures.
bool agreed(const Error& error) {
  return error.code() == ErrorCode::NotFinite || error.code() == ErrorCode::OutOfMemory ||
         error.code() == ErrorCode::CallMismatch;
}

}  // namespace

progress::Report run_training(const job::JobConfig& job, comm::Group group,
                              const TrainerOptions& options, progress::Observer& observer) {
  const int rank = group.rank();
  try {
    require_deterministic(job, group.size());
    return TrainingRun(job, group, options, observer).run();
  } catch (const progress::Interrupted&) {  // by all ranks alike
    return {.world_size = group.size(), .interrupted = true};
  } catch (const Error& error) {
    // What went wrong here alone must not leave the others waiting.
    if (!agreed(error)) group.abort(fmt::format("rank {}: {}", rank, error.what()));
    throw;
  } catch (const std::exception& error) {
    const auto told = error_of(error, fmt::format("rank {}", rank), rank);
    group.abort(told.what());
    throw told;
  }
}

}  // namespace bimetal::train

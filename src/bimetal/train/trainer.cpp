#include "bimetal/train/trainer.h"

#include <fmt/format.h>
#include <torch/csrc/api/include/torch/types.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "bimetal/base/counted.h"
#include "bimetal/base/deadline.h"
#include "bimetal/base/error.h"
#include "bimetal/checkpoint/starting_point.h"
#include "bimetal/job/combinations.h"
#include "bimetal/optim/optimizers.h"
#include "bimetal/optim/schedule.h"
#include "bimetal/parallel/mesh/named_error.h"
#include "bimetal/predict/evaluate.h"
#include "bimetal/progress/together.h"
#include "bimetal/train/error_of.h"
#include "bimetal/train/out_of_memory.h"
#include "bimetal/train/pipeline/auto_mesh.h"
#include "bimetal/train/training_run.h"

namespace bimetal::train {

progress::Report TrainingRun::run() {
  introduce_workers();
  try {
    return run_steps();
  } catch (const Error& error) {
    if (follows_from_a_loss(error)) rescue(error);
    // What has been aborted says who has failed, in that rank's words.
    const bool names = stages_.mesh && error.code() != ErrorCode::Aborted;
    if (!names || !follows_from_a_loss(error)) throw;
    throw parallel::named(error, stages_.mesh->shape(), group_.rank());
  }
}

progress::Report TrainingRun::run_steps() {
  observer_.on_phase("training");
  since_save_ = Stopwatch();
  if (const auto text = checkpoint::early_end(job_.train, planned_steps_)) {
    observer_.on_notice(*text);
  }
  trained_.model().train();
  idle_.tell(lanes_.by_rank(balancer_.shares()), job_.train.global_batch, observer_);
  apart_.begin(state_.step);
  feed_.draw(balancer_.shares());
  offload_.start();
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
  if (!interrupted_) {
    evaluate_now();
    test_now();
  }
  auto report = journal_.report(replicas_.group(), state_.step, place_of_replica_.host,
                                place_of_replica_.device, milliseconds_of(job_.parallel.timeout_s));
  if (const auto text = replicas_.advice(alone_, report.samples_per_s)) observer_.on_notice(*text);
  report.interrupted = interrupted_;
  precisions_.report(report, step_.stages().scaler());
  report.mesh = report_of(stages_, job_.mesh);
  report.best = best_.best();
  if (!replicas_.in_parts()) {
    memory_.report(report);
    offload_.report(group_, report, milliseconds_of(job_.parallel.timeout_s));
  }
  return report;
}

/// False when the job is done.
bool TrainingRun::next_step() {
  if (!feed_.next() || state_.step >= planned_steps_) return false;
  const auto plan = *feed_.next();
  current_ = plan;
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
  const auto result = step_.run(step, plan.samples, fetch, stop, shadow, save_due());
  if (profiler_.end(step)) journal_.start_clock();
  if (!result.applied) {
    repeat(plan, result);
    return true;
  }
  record(plan, result);
  learn_shares(result.figures);
  interrupted_ = std::ranges::any_of(result.figures, &progress::RankFigures::stop_requested);
  if (interrupted_) tell_who_ended_it(result.figures);
  const auto every = job_.checkpoint.every_steps;
  const bool by_clock = std::ranges::any_of(result.figures, &progress::RankFigures::save_due);
  if (plan.ends_epoch || by_clock || (every > 0 && state_.step % every == 0)) save_now();
  if (plan.ends_epoch && !interrupted_) evaluate_now();
  return true;
}

/// What this rank has measured since the last step, and the start of another shadow batch where it
/// has nothing else to do.
progress::ShadowFigures TrainingRun::measure_beside_work(const data::BatchFeed::Plan& plan) {
  const auto lane = static_cast<std::size_t>(lanes_.mine());
  const auto measured = shadow_.take();
  const auto wanted = measures_alone() ? balancer_.shadows()[lane] : 0;
  if (plan.samples.counts[lane] > 0) {
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
  auto done = journal_.add(state_.step, plan, result);
  if (stage_) {
    const auto most = *std::ranges::max_element(plan.samples.counts);
    done.pipeline = {job_.mesh.schedule, stage_->micro_batches(most)};
  }
  progress::tell_step(done, loss_trend_, observer_);
  apart_.look(observer_);
}

/// Every rank feeds its balancer with the same figures, and so holds the same shares.
void TrainingRun::learn_shares(std::span<const progress::RankFigures> figures) {
  if (balancer_.observe(lanes_.learnt(figures))) {
    idle_.tell(lanes_.by_rank(balancer_.shares()), job_.train.global_batch, observer_);
  }
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
    observer_.on_notice(
        fmt::format("rank {} ran out of memory on {}: {}", rank, counted(figures.batch, "sample"),
                    remedy(figures, balancer_.devices()[lanes_.of(static_cast<int>(rank))].cap)));
  }
  feed_.rewind(plan.before);
  feed_.draw(balancer_.shares());
}

/// Where it was asked for, the launcher has said so: on the machine whose ranks are numbered from
/// its first on.
void TrainingRun::tell_who_ended_it(std::span<const progress::RankFigures> figures) {
  const auto first_here = static_cast<std::size_t>(group_.rank() - options_.local_rank);
  const auto here = static_cast<std::size_t>(options_.local_world_size);
  for (std::size_t rank = 0; rank < std::min(figures.size(), hosts_.size()); ++rank) {
    if (!figures[rank].stop_requested) continue;
    if (rank >= first_here && rank < first_here + here) return;
    observer_.on_notice(
        fmt::format("rank {} on {} was told to stop (Ctrl-C there): the job ends after step {}",
                    rank, hosts_[rank], state_.step));
    return;
  }
}

void TrainingRun::introduce_workers() {
  auto places = replicas_.places(
      {options_.host_name, job::with_device(options_.worker, place_.device.str())},
      milliseconds_of(job_.parallel.timeout_s));
  for (const auto& place : places) hosts_.push_back(place.host);
  place_of_replica_ = places[static_cast<std::size_t>(replicas_.group().rank())];
  for (std::size_t rank = 0; stages_.mesh && rank < places.size(); ++rank) {
    places[rank].stage = stages_.name_of(static_cast<int>(rank));
  }
  observer_.on_workers(places);
}

/// Between epochs and at the end: with the validation data where there are any.
void TrainingRun::evaluate_now() {
  const auto validation = task_->validation();
  const auto data = validation ? validation : task_->evaluation();
  if (!job_.train.evaluate || !data || evaluated_step_ == state_.step) return;
  evaluated_step_ = state_.step;
  const auto result =
      evaluate_with(data, validation ? progress::kValidationData : progress::kTestData);
  if (!validation || group_.rank() != 0) return;
  best_.offer(saved_step_ == state_.step ? saved_path_ : "", state_.step, result);
}

/// Once, at the end: what has been chosen by other data.
void TrainingRun::test_now() {
  if (!job_.train.evaluate || !task_->validation() || !task_->evaluation()) return;
  evaluate_with(task_->evaluation(), progress::kTestData);
  const auto& best = best_.best();
  if (!best || best->checkpoint.empty()) return;
  observer_.on_notice(
      fmt::format("best by validation: step {}, kept in {}", best->step, best->checkpoint));
}

progress::Evaluation TrainingRun::evaluate_with(std::shared_ptr<const task::Dataset> data,
                                                std::string name) {
  const predict::EvaluateOptions how{.device = place_.device,
                                     .speed = options_.worker.speed,
                                     .timeout = milliseconds_of(job_.parallel.timeout_s),
                                     .waited = [this] { return trained_.waited_seconds(); },
                                     .data = std::move(data),
                                     .computed = [this] { trained_.end_passes(); }};
  const auto rates = alone_rates(balancer_);
  trained_.begin_passes();
  auto result = stage_
                    ? stage_->evaluate(rates, how)
                    : predict::evaluate(computed_, trained_.model(), replicas_.group(), rates, how);
  result.data = std::move(name);
  journal_.add_evaluation(state_.step, result);
  observer_.on_evaluated(state_.position.epoch + 1, result);
  journal_.start_clock();
  return result;
}

/// By rank 0's clock: ranks that went by their own would not save the same steps.
bool TrainingRun::save_due() const {
  const auto& checkpoint = job_.checkpoint;
  return group_.rank() == 0 && !checkpoint.dir.empty() && checkpoint.every_minutes > 0 &&
         since_save_.seconds() >= 60 * checkpoint.every_minutes;
}

void TrainingRun::save_now() {
  if (saved_step_ == state_.step) return;
  saved_step_ = state_.step;
  const auto shares = balancer_.shares();
  const auto busiest = std::ranges::max_element(shares) - shares.begin();
  step_.broadcast_buffers(static_cast<int>(busiest));
  trained_.require_finite();
  if (!job_.checkpoint.dir.empty()) {
    complete_state();
    state_.error_feedback = step_.parallel().error_feedback();
    saved_path_ = trained_.save();
    state_.error_feedback.clear();
    observer_.on_checkpoint(saved_path_.string(), state_.step);
  }
  since_save_ = Stopwatch();
  journal_.start_clock();
}

/// But for what compression has not got across.
void TrainingRun::complete_state() {
  state_.shares = balancer_.shares();
  state_.torch_rng = checkpoint::random_state();
  // The job's, not the last step's, which follows from the step's number.
  optim::set_learning_rate(trained_.optimizer(), optim::full_rate(job_.train));
  if (const auto& scaler = step_.stages().scaler()) state_.loss_scaler = scaler->state();
}

namespace {

/// Whether all ranks throw this error by themselves, because they have seen the same figures.
bool agreed(const Error& error) {
  return error.code() == ErrorCode::NotFinite || error.code() == ErrorCode::OutOfMemory ||
         error.code() == ErrorCode::CallMismatch;
}

void require_meeting(const job::JobConfig& job, int ranks, const TrainerOptions& options) {
  if (job.zero.copies == 1 || ranks == 1 || options.meet_again) return;
  throw Error(ErrorCode::Unsupported,
              "zero.copies = 2 needs ranks that `bimetal train`, or it with `bimetal join`, has "
              "started: others are ended as soon as one is lost, or have nowhere to meet then; "
              "leave it out, and set checkpoint.every_steps");
}

}  // namespace

progress::Report run_training(const job::JobConfig& job, comm::Group group,
                              const TrainerOptions& options, progress::Observer& observer) {
  const int rank = group.rank();
  try {
    require_deterministic(job, group.size());
    require_counts(job, group.size());
    require_meeting(job, group.size(), options);
    const auto own = job::as_worker_has_it(job, options.worker);
    const auto settled = with_mesh(own, group, options, observer);
    return TrainingRun(settled, group, options, observer).run();
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

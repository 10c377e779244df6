#include "bimetal/train/trainer.h"

#include <c10/util/Exception.h>
#include <fmt/format.h>
#include <torch/torch.h>

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "bimetal/balance/balancer.h"
#include "bimetal/base/error.h"
#include "bimetal/c10d/form_islands.h"
#include "bimetal/data/bootstrap.h"
#include "bimetal/train/batch_feed.h"
#include "bimetal/train/evaluate.h"
#include "bimetal/train/gradient_compression.h"
#include "bimetal/train/journal.h"
#include "bimetal/train/optimizers.h"
#include "bimetal/train/out_of_memory.h"
#include "bimetal/train/schedule.h"
#include "bimetal/train/setup.h"
#include "bimetal/train/shared_checkpoint.h"
#include "bimetal/train/starting_point.h"
#include "bimetal/train/step.h"
#include "bimetal/train/step_probe.h"
#include "bimetal/train/together.h"
#include "bimetal/train/worker_summary.h"

namespace bimetal::train {
namespace {

std::chrono::milliseconds step_timeout(const Job& job) {
  return std::chrono::milliseconds(static_cast<std::int64_t>(job.parallel.timeout_s * 1000));
}

/// The whole of one rank's run. Its members are made in the order of their declaration, which is
/// the order of a run's start.
class TrainingRun {
 public:
  TrainingRun(const Job& job, comm::Group group, const TrainerOptions& options, Observer& observer);
  Report run();

 private:
  data::TrainTest load_data();
  balance::Balancer measure_devices();
  StepOptions step_options() const;
  std::shared_ptr<c10d::Island> find_island() const;
  data::EpochSampler sampler() const;

  bool next_step();
  void learn_shares(std::span<const RankFigures> figures);
  void repeat(const BatchFeed::Plan& plan, const StepResult& result);
  void record(const BatchFeed::Plan& plan, const StepResult& result);
  void introduce_workers();
  void notice_idle_ranks();
  void evaluate_now();
  void save_now();
  void take_error_feedback();
  std::vector<double> alone_rates() const;

  const Job& job_;
  const TrainerOptions& options_;
  Observer& observer_;
  comm::Group group_;
  Place place_;
  data::TrainTest data_;
  balance::Balancer balancer_;
  std::shared_ptr<models::Classifier> model_;
  std::unique_ptr<torch::optim::Optimizer> optimizer_;
  TrainingState state_;
  std::int64_t planned_steps_;
  TrainingStep step_;
  BatchFeed feed_;
  Journal journal_;

  std::int64_t saved_step_, evaluated_step_;
  std::vector<bool> idle_;
  bool interrupted_ = false;
};

TrainingRun::TrainingRun(const Job& job, comm::Group group, const TrainerOptions& options,
                         Observer& observer)
    : job_(job),
      options_(options),
      observer_(observer),
      group_(std::move(group)),
      place_(choose_place(job_, options_)),
      data_(load_data()),
      balancer_(measure_devices()),
      model_(make_seeded_model(job_, data_.train, place_)),
      optimizer_(make_optimizer(optimizer_config(job_, group_.size()), model_->parameters())),
      state_(starting_point(group_, job_, options_.resume, *model_, *optimizer_, place_.device,
                            observer_)),
      planned_steps_(planned_steps(job_.train, data_.train.size(), state_)),
      step_(model_, *optimizer_, group_, step_options()),
      feed_(data_.train, sampler(), group_.rank(), job_.train.epochs, place_.dtype, place_.device),
      journal_(group_.size(), {.epochs = job_.train.epochs,
                               .steps = planned_steps_,
                               .global_batch = job_.train.global_batch}),
      saved_step_(state_.step),
      evaluated_step_(-1) {
  state_.model = describe_model(job_, data_.train);
  take_error_feedback();
}

void TrainingRun::take_error_feedback() {
  if (step_.parallel().set_error_feedback(std::exchange(state_.error_feedback, {}), state_.step)) {
    return;
  }
  observer_.on_notice(
      "the checkpoint's error feedback is of other buckets or of a compressed job: it is dropped");
}

data::TrainTest TrainingRun::load_data() {
  auto data = load_shared_data(group_, job_, options_, observer_);
  if (const auto seed = job_.data.bootstrap_seed) data.train = data::bootstrap(data.train, seed);
  return data;
}

balance::Balancer TrainingRun::measure_devices() {
  observer_.on_phase("measuring devices");
  const ProbeOptions options{
      .device = place_.device, .dtype = place_.dtype, .speed = options_.worker.speed};
  return balance::Balancer({.policy = job_.parallel.balance,
                            .fixed_weights = job_.parallel.weights,
                            .global_batch = job_.train.global_batch},
                           probe_devices(group_, job_, data_.train, options));
}

StepOptions TrainingRun::step_options() const {
  StepOptions options;
  options.device = place_.device;
  options.speed = options_.worker.speed;
  options.micro_batch = job_.train.micro_batch;
  options.parallel.bucket_bytes = static_cast<std::size_t>(job_.parallel.bucket_mb * (1 << 20));
  options.parallel.timeout = step_timeout(job_);
  options.parallel.compression = gradient_compression(job_, group_.size());
  options.parallel.island = find_island();
  return options;
}

/// A compressed exchange needs each rank's own gradients: it does without islands.
std::shared_ptr<c10d::Island> TrainingRun::find_island() const {
  if (job_.fabric.islands == "off" || job_.parallel.compression != "none") return nullptr;
  return c10d::form_islands(group_, place_.device, step_timeout(job_));
}

data::EpochSampler TrainingRun::sampler() const {
  data::EpochSampler sampler(data_.train.size(), job_.train.seed);
  sampler.seek(state_.position);
  return sampler;
}

Report TrainingRun::run() {
  introduce_workers();
  observer_.on_phase("training");
  model_->train();
  notice_idle_ranks();
  feed_.draw(balancer_.shares());
  journal_.start_clock();
  while (!interrupted_ && next_step()) {
  }
  save_now();
  if (!interrupted_) evaluate_now();
  auto report = journal_.report(group_, state_.step, options_.host_name, place_.device.str(),
                                alone_rates(), step_timeout(job_));
  report.interrupted = interrupted_;
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
  set_learning_rate(*optimizer_, learning_rate_at(job_.train, step, planned_steps_));
  const auto result = step_.run(step, plan.samples, fetch, stop);
  if (!result.applied) {
    repeat(plan, result);
    return true;
  }
  record(plan, result);
  learn_shares(result.figures);
  interrupted_ = std::ranges::any_of(result.figures, &RankFigures::stop_requested);
  const auto every = job_.checkpoint.every_steps;
  if (plan.ends_epoch || (every > 0 && state_.step % every == 0)) save_now();
  if (plan.ends_epoch && !interrupted_) evaluate_now();
  return true;
}

void TrainingRun::record(const BatchFeed::Plan& plan, const StepResult& result) {
  ++state_.step;
  state_.position = plan.after;
  observer_.on_step(journal_.add(state_.step, plan, result, alone_rates(), balancer_.shares()));
}

/// Every rank feeds its balancer with the same figures, and so holds the same shares.
void TrainingRun::learn_shares(std::span<const RankFigures> figures) {
  std::vector<balance::StepFigures> learnt;
  for (const auto& rank : figures) {
    learnt.push_back({.batch = rank.batch,
                      .compute_seconds = rank.compute_seconds,
                      .out_of_memory = rank.fit == Fit::too_large});
  }
  if (balancer_.observe(learnt)) notice_idle_ranks();
}

/// The same samples again, after one rank or several ran out of memory. Only a rank that cannot
/// compute in smaller pieces loses a part of its share.
void TrainingRun::repeat(const BatchFeed::Plan& plan, const StepResult& result) {
  journal_.add_repeated(result);
  const auto too_large = [](const RankFigures& rank) { return rank.fit == Fit::too_large; };
  if (std::ranges::any_of(result.figures, too_large)) learn_shares(result.figures);
  for (std::size_t rank = 0; rank < result.figures.size(); ++rank) {
    const auto& figures = result.figures[rank];
    if (figures.fit == Fit::fits) continue;
    observer_.on_notice(
        too_large(figures)
            ? fmt::format("rank {} ran out of memory on {} samples: its share is capped at {}",
                          rank, figures.batch, balancer_.devices()[rank].cap)
            : fmt::format("rank {} ran out of memory on {} samples: it computes them in smaller "
                          "micro-batches",
                          rank, figures.batch));
  }
  feed_.rewind(plan.before);
  feed_.draw(balancer_.shares());
}

void TrainingRun::introduce_workers() {
  const WorkerSummary mine{.host = options_.host_name, .device = place_.device.str()};
  std::vector<WorkerPlace> places;
  for (auto& summary : gather_summaries(group_, mine, step_timeout(job_))) {
    places.push_back({std::move(summary.host), std::move(summary.device)});
  }
  observer_.on_workers(places);
}

void TrainingRun::notice_idle_ranks() {
  const auto& shares = balancer_.shares();
  idle_.resize(shares.size());
  for (std::size_t rank = 0; rank < shares.size(); ++rank) {
    const bool idle = shares[rank] == 0;
    if (idle && !idle_[rank]) {
      observer_.on_notice(
          fmt::format("rank {} gets no samples: the others finish a batch of {} sooner without it",
                      rank, job_.train.global_batch));
    }
    idle_[rank] = idle;
  }
}

void TrainingRun::evaluate_now() {
  if (!job_.train.evaluate || evaluated_step_ == state_.step) return;
  evaluated_step_ = state_.step;
  const auto result = evaluate(*model_, data_.test, group_, alone_rates(),
                               {.device = place_.device,
                                .dtype = place_.dtype,
                                .speed = options_.worker.speed,
                                .timeout = step_timeout(job_)});
  journal_.add_evaluation(state_.step, result.accuracy);
  observer_.on_evaluated(state_.position.epoch + 1, result.accuracy, result.loss);
  journal_.start_clock();
}

void TrainingRun::save_now() {
  if (saved_step_ == state_.step) return;
  saved_step_ = state_.step;
  state_.shares = balancer_.shares();
  const auto busiest = std::ranges::max_element(state_.shares) - state_.shares.begin();
  step_.broadcast_buffers(static_cast<int>(busiest));
  require_finite_parameters(group_, *model_, state_.step, step_timeout(job_));
  if (!job_.checkpoint.dir.empty()) {
    state_.torch_rng = random_state();
    // The job's, not the last step's, which follows from the step's number.
    set_learning_rate(*optimizer_, job_.train.learning_rate);
    state_.error_feedback = step_.parallel().error_feedback();
    const auto path = save_shared_checkpoint(group_, job_.checkpoint, *model_, *optimizer_, state_);
    state_.error_feedback.clear();
    observer_.on_checkpoint(path.string(), state_.step);
  }
  journal_.start_clock();
}

std::vector<double> TrainingRun::alone_rates() const {
  std::vector<double> rates;
  for (int rank = 0; rank < group_.size(); ++rank) rates.push_back(balancer_.alone_rate(rank));
  return rates;
}

/// Whether all ranks throw this error by themselves, because they have seen the same figures.
bool agreed(const Error& error) {
  return error.code() == ErrorCode::NotFinite || error.code() == ErrorCode::OutOfMemory ||
         error.code() == ErrorCode::CallMismatch;
}

std::string first_line(const std::exception& error) {
  const auto* torch_error = dynamic_cast<const c10::Error*>(&error);
  const std::string text = torch_error ? torch_error->what_without_backtrace() : error.what();
  return text.substr(0, text.find('\n'));
}

}  // namespace

Report run_training(const Job& job, comm::Group group, const TrainerOptions& options,
                    Observer& observer) {
  const int rank = group.rank();
  try {
    return TrainingRun(job, group, options, observer).run();
  } catch (const Interrupted&) {  // by all ranks alike
    return {.world_size = group.size(), .interrupted = true};
  } catch (const Error& error) {
    // What went wrong here alone must not leave the others waiting.
    if (!agreed(error)) group.abort(fmt::format("rank {}: {}", rank, error.what()));
    throw;
  } catch (const std::exception& error) {
    const bool memory = is_out_of_memory(std::current_exception());
    const auto message =
        fmt::format("rank {}{}: {}", rank, memory ? " ran out of memory" : "", first_line(error));
    group.abort(message);
    throw Error(memory ? ErrorCode::OutOfMemory : ErrorCode::Internal, message, rank);
  }
}

}  // namespace bimetal::train

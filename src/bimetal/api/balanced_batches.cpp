#include <c10/util/Exception.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <asio/ip/host_name.hpp>
#include <string>
#include <vector>

#include "bimetal/api/balanced_steps.h"
#include "bimetal/api/job.h"
#include "bimetal/base/error.h"
#include "bimetal/checkpoint/starting_point.h"
#include "bimetal/comm/call.h"
#include "bimetal/job/job_config.h"
#include "bimetal/job/job_keys.h"
#include "bimetal/parallel/data/replicated_model.h"
#include "bimetal/train/profile/phase.h"

namespace bimetal {

BalancedBatches::Iterator BalancedBatches::begin() {
  steps_->advance();
  return Iterator(steps_.get());
}

Batch& BalancedBatches::Iterator::operator*() const {
  return steps_->batch();
}

BalancedBatches::Iterator& BalancedBatches::Iterator::operator++() {
  steps_->advance();
  return *this;
}

bool BalancedBatches::Iterator::operator==(std::default_sentinel_t) const {
  return steps_->finished();
}

}  // namespace bimetal

namespace bimetal::api {
namespace {

balance::Balancer make_balancer(const BalancedOptions& options, std::int64_t batch_weight,
                                int lanes) {
  return balance::Balancer(
      {.policy = options.balance, .fixed_weights = options.weights, .global_batch = batch_weight},
      std::vector<balance::Device>(static_cast<std::size_t>(lanes)));
}

/// The loop's place in the data and its steps before the first.
checkpoint::TrainingState beginning_of(const BalancedOptions& options, std::int64_t first_epoch,
                                       std::int64_t dataset_size) {
  checkpoint::TrainingState begin;
  begin.position = {.epoch = first_epoch};
  begin.seed = options.seed;
  begin.global_batch = options.global_batch;
  if (!options.from) return begin;
  auto [step, position, seed] = *options.from;
  if (seed != options.seed) {
    throw Error(ErrorCode::InvalidArgument,
                fmt::format("BalancedOptions::from was saved with seed = {} and seed is {}: the "
                            "order of samples would change within the epoch; go on with seed = {}",
                            seed, options.seed, seed));
  }
  if (position.offset == dataset_size) position = {.epoch = position.epoch + 1};
  if (position.epoch < first_epoch) return begin;
  begin.step = step;
  begin.position = position;
  return begin;
}

std::int64_t steps_of(const BalancedOptions& options, std::int64_t dataset_size,
                      std::int64_t first_epoch) {
  job::TrainConfig config;
  config.epochs = first_epoch + options.epochs;
  config.steps = options.steps;
  config.global_batch = options.global_batch;
  return checkpoint::planned_steps(config, dataset_size,
                                   beginning_of(options, first_epoch, dataset_size));
}

/// Everything that the shares, the order and the weight of every step depend on.
std::vector<std::string> facts_of(const task::Dataset& dataset, const BalancedOptions& options) {
  comm::Checksum weights;
  for (const auto weight : task::weights_of(dataset)) {
    weights.take(static_cast<std::uint64_t>(weight));
  }
  const auto from = options.from.value_or(StartingPoint{.step = -1});
  return {
      fmt::format("Job::balanced: {} samples", dataset.size()),
      fmt::format("a checksum {:x} of the samples' weights", weights.value()),
      fmt::format("global_batch = {}", options.global_batch),
      fmt::format("epochs = {}", options.epochs),
      fmt::format("epoch = {}", options.epoch),
      fmt::format("from step {}, epoch {}, sample {}", from.step, from.position.epoch,
                  from.position.offset),
      fmt::format("steps = {}", options.steps),
      fmt::format("seed = {}", options.seed),
      fmt::format("balance = {}", static_cast<int>(options.balance)),
      fmt::format("weights = [{}]", fmt::join(options.weights, ", ")),
      fmt::format("sample_group = {}", options.sample_group),
      fmt::format("profile of steps {} to {}", options.profile ? options.profile->first_step : 0,
                  options.profile ? options.profile->last_step : 0)};
}

/// The samples' order; first of all, ranks that do not want the same are told so.
data::EpochSampler agreed_sampler(const task::Dataset& dataset, const BalancedOptions& options,
                                  std::int64_t first_epoch, const comm::Group& group) {
  job::require_same_facts(group, facts_of(dataset, options),
                          parallel::ReplicatedModelOptions().timeout);
  auto sampler = data::make_sampler(dataset, options.seed, options.sample_group);
  sampler.seek(beginning_of(options, first_epoch, dataset.size()).position);
  return sampler;
}

/// Collective, if `options` ask for one. The observer is told of it, too.
std::unique_ptr<train::StepProfiler> make_profiler(
    const BalancedOptions& options, const comm::Group& group, const torch::Device& device,
    const std::shared_ptr<progress::Observer>& observer) {
  auto request = options.profile;
  if (!request) return nullptr;
  if (request->first_step < 1 || request->last_step < request->first_step) {
    throw Error(ErrorCode::InvalidArgument,
                fmt::format("BalancedOptions::profile is of steps {} to {}: they count from 1, and "
                            "the last one is not before the first",
                            request->first_step, request->last_step));
  }
  request->done = [done = request->done, observer](const train::Profile& profile) {
    if (done) done(profile);
    observer->on_profile(train::times_of(profile));
  };
  return std::make_unique<train::StepProfiler>(group, std::move(request), device, device.str(),
                                               parallel::ReplicatedModelOptions().timeout);
}

}  // namespace

std::string origin_of_failure(const comm::Group& group) {
  auto origin = fmt::format("rank {}", group.rank());
  if (!group.topology().one_island()) origin += fmt::format(" ({})", asio::ip::host_name());
  if (const auto unit = task::failed_unit(); !unit.empty()) {
    origin += fmt::format(", unit '{}'", unit);
  }
  return origin;
}

void or_end_all(comm::Group group, const std::function<void()>& work) {
  const auto end = [&](const std::string& why) {
    group.abort(fmt::format("{}: {}", origin_of_failure(group), why));
    group.wait_told(Deadline::after(kLastWords));
  };
  try {
    work();
  } catch (const Error& error) {
    if (!error.rank()) end(error.what());
    throw;
  } catch (const c10::Error& error) {
    end(error.what_without_backtrace());
    throw;
  } catch (const std::exception& error) {
    end(error.what());
    throw;
  } catch (const WorkersChange&) {
    throw;
  } catch (...) {
    end("an exception that is no std::exception");
    throw;
  }
}

BalancedSteps::BalancedSteps(std::shared_ptr<const task::Dataset> dataset,
                             const BalancedOptions& options, std::int64_t first_epoch,
                             const comm::Group& group, const train::Lanes& lanes,
                             const torch::Device& device,
                             const std::shared_ptr<progress::Observer>& observer)
    : BalancedSteps(dataset, agreed_sampler(*dataset, options, first_epoch, group), options,
                    first_epoch, group, lanes, device, observer) {}

BalancedSteps::BalancedSteps(std::shared_ptr<const task::Dataset> dataset,
                             const data::EpochSampler& sampler, const BalancedOptions& options,
                             std::int64_t first_epoch, const comm::Group& group,
                             const train::Lanes& lanes, const torch::Device& device,
                             const std::shared_ptr<progress::Observer>& observer)
    : dataset_(std::move(dataset)),
      group_(group),
      lanes_(lanes),
      state_(beginning_of(options, first_epoch, dataset_->size())),
      planned_(steps_of(options, dataset_->size(), first_epoch)),
      next_epoch_(first_epoch),
      sample_group_(options.sample_group),
      balancer_(make_balancer(options, sampler.mean_weight(options.global_batch), lanes.count())),
      feed_(dataset_, sampler, lanes.mine(), options.global_batch, first_epoch + options.epochs,
            device),
      run_({.epochs = first_epoch + options.epochs,
            .steps = planned_,
            .global_batch = sampler.mean_weight(options.global_batch)}),
      journal_(balancer_, lanes, options.balance, run_),
      profiler_(make_profiler(options, group_, device, observer)) {
  batch_.step = state_.step;
  feed_.draw(balancer_.shares());
}

void BalancedSteps::advance() {
  if (open_) {
    throw Error(ErrorCode::InvalidArgument,
                "the loop over Job::balanced went on without a step (DataParallel::step, "
                "Pipeline::step): the other ranks would wait for this one's gradients");
  }
  require_no_change();
  finished_ = !feed_.next() || batch_.step == planned_;
  if (finished_) {
    if (profiler_) profiler_->finish();
    return;
  }
  open_ = *feed_.next();
  if (!begun_) journal_.start_clock();
  begun_ = true;
  if (profiler_) profiler_->begin(batch_.step + 1);
  train::in_phase(train::Phase::kData, [this] { hand_out(); });
  since_handed_out_ = Stopwatch();
}

void BalancedSteps::hand_out() {
  or_end_all(group_, [this] { batch_.values = feed_.take(); });
  batch_.x = batch_.values.front();
  batch_.y = batch_.values.back();
  next_epoch_ = batch_.epoch = open_->samples.epoch + 1;
  ++batch_.step;
  feed_.draw(balancer_.shares());
}

const data::BatchFeed::Plan& BalancedSteps::open_plan() const {
  if (open_) return *open_;
  throw Error(ErrorCode::InvalidArgument,
              "a step belongs into a loop over Job::balanced, once for each batch");
}

void BalancedSteps::require_dealt_to(int lanes) const {
  if (lanes_.count() == lanes) return;
  throw Error(
      ErrorCode::InvalidArgument,
      fmt::format("batches are dealt to {} and this step is of {}: make the Pipeline before "
                  "Job::balanced, and train with it alone",
                  lanes_.count(), lanes));
}

void BalancedSteps::end_step(const train::StepResult& result, std::optional<double> loss_scale) {
  if (profiler_ && profiler_->end(batch_.step)) journal_.start_clock();
  progress_ = journal_.add(batch_.step, *open_, result);
  progress_.loss_scale = loss_scale;
  balancer_.observe(lanes_.learnt(result.figures));
  state_.step = batch_.step;
  state_.position = open_->after;
  open_.reset();
}

progress::Report BalancedSteps::report() const {
  return journal_.report(group_, batch_.step, parallel::ReplicatedModelOptions().timeout);
}

checkpoint::TrainingState BalancedSteps::state() const {
  if (open_) {
    throw Error(ErrorCode::InvalidArgument,
                "save() belongs behind the batch's step(), which has not ended");
  }
  auto state = state_;
  state.shares = balancer_.shares();
  return state;
}

}  // namespace bimetal::api

#include "bimetal/api/balanced_batches.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <string>

#include "bimetal/base/error.h"
#include "bimetal/checkpoint/starting_point.h"
#include "bimetal/comm/checksum.h"
#include "bimetal/job/job_config.h"
#include "bimetal/job/same_job.h"
#include "bimetal/parallel/data/replicated_model.h"

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
                                int ranks) {
  return balance::Balancer(
      {.policy = options.balance, .fixed_weights = options.weights, .global_batch = batch_weight},
      std::vector<balance::Device>(static_cast<std::size_t>(ranks)));
}

std::int64_t steps_of(const BalancedOptions& options, std::int64_t dataset_size) {
  job::TrainConfig config;
  config.epochs = options.epochs;
  config.steps = options.steps;
  config.global_batch = options.global_batch;
  return checkpoint::planned_steps(config, dataset_size, {});
}

/// What the shares, the order and the weight of every step depend on.
std::vector<std::string> facts_of(const task::Dataset& dataset, const BalancedOptions& options) {
  comm::Checksum weights;
  for (const auto weight : task::weights_of(dataset)) {
    weights.take(static_cast<std::uint64_t>(weight));
  }
  return {fmt::format("Job::balanced: {} samples", dataset.size()),
          fmt::format("a checksum {:x} of the samples' weights", weights.value()),
          fmt::format("global_batch = {}", options.global_batch),
          fmt::format("epochs = {}", options.epochs),
          fmt::format("steps = {}", options.steps),
          fmt::format("seed = {}", options.seed),
          fmt::format("balance = {}", static_cast<int>(options.balance)),
          fmt::format("weights = [{}]", fmt::join(options.weights, ", ")),
          fmt::format("sample_group = {}", options.sample_group)};
}

/// The samples' order; first of all, ranks that do not want the same are told so.
data::EpochSampler agreed_sampler(const task::Dataset& dataset, const BalancedOptions& options,
                                  std::int64_t first_epoch, const comm::Group& group) {
  job::require_same_facts(group, facts_of(dataset, options),
                          parallel::ReplicatedModelOptions().timeout);
  auto sampler = data::make_sampler(dataset, options.seed, options.sample_group);
  sampler.seek({.epoch = first_epoch});
  return sampler;
}

}  // namespace

BalancedSteps::BalancedSteps(std::shared_ptr<const task::Dataset> dataset,
                             const BalancedOptions& options, std::int64_t first_epoch,
                             const comm::Group& group, const torch::Device& device)
    : BalancedSteps(dataset, agreed_sampler(*dataset, options, first_epoch, group), options,
                    first_epoch, group, device) {}

BalancedSteps::BalancedSteps(std::shared_ptr<const task::Dataset> dataset,
                             const data::EpochSampler& sampler, const BalancedOptions& options,
                             std::int64_t first_epoch, const comm::Group& group,
                             const torch::Device& device)
    : planned_(steps_of(options, dataset->size())),
      next_epoch_(first_epoch),
      sample_group_(options.sample_group),
      balancer_(make_balancer(options, sampler.mean_weight(options.global_batch), group.size())),
      feed_(std::move(dataset), sampler, group.rank(), options.global_batch,
            first_epoch + options.epochs, device),
      run_({.epochs = first_epoch + options.epochs,
            .steps = planned_,
            .global_batch = sampler.mean_weight(options.global_batch)}),
      journal_(balancer_, train::Lanes(group.size(), group.rank()), options.balance, run_) {
  feed_.draw(balancer_.shares());
}

void BalancedSteps::advance() {
  if (open_) {
    throw Error(ErrorCode::InvalidArgument,
                "the loop over Job::balanced went on without DataParallel::step: the other ranks "
                "would wait for this one's gradients");
  }
  finished_ = !feed_.next() || batch_.step == planned_;
  if (finished_) return;
  open_ = *feed_.next();
  if (batch_.step == 0) journal_.start_clock();
  batch_.values = feed_.take();
  batch_.x = batch_.values.front();
  batch_.y = batch_.values.back();
  next_epoch_ = batch_.epoch = open_->samples.epoch + 1;
  ++batch_.step;
  feed_.draw(balancer_.shares());
  since_handed_out_ = Stopwatch();
}

const data::BatchFeed::Plan& BalancedSteps::open_plan() const {
  if (open_) return *open_;
  throw Error(ErrorCode::InvalidArgument,
              "DataParallel::step belongs into a loop over Job::balanced, once for each batch");
}

void BalancedSteps::end_step(const train::StepResult& result) {
  progress_ = journal_.add(batch_.step, *open_, result);
  std::vector<balance::StepFigures> figures;
  for (const auto& rank : result.figures) {
    figures.push_back({.batch = rank.batch, .compute_seconds = rank.compute_seconds});
  }
  balancer_.observe(figures);
  open_.reset();
}

}  // namespace bimetal::api

#include "bimetal/api/balanced_steps.h"

#include "bimetal/base/error.h"
#include "bimetal/train/job.h"
#include "bimetal/train/starting_point.h"

namespace bimetal::api {
namespace {

balance::Balancer make_balancer(const BalancedOptions& options, int ranks) {
  return balance::Balancer({.policy = options.balance,
                            .fixed_weights = options.weights,
                            .global_batch = options.global_batch},
                           std::vector<balance::Device>(static_cast<std::size_t>(ranks)));
}

std::int64_t steps_of(const BalancedOptions& options, std::int64_t dataset_size) {
  train::TrainConfig config;
  config.epochs = options.epochs;
  config.steps = options.steps;
  config.global_batch = options.global_batch;
  return train::planned_steps(config, dataset_size, {});
}

}  // namespace

BalancedSteps::BalancedSteps(const data::ImageDataset& dataset, const BalancedOptions& options,
                             const comm::Group& group, const torch::Device& device)
    : planned_(steps_of(options, dataset.size())),
      balancer_(make_balancer(options, group.size())),
      feed_(dataset, data::EpochSampler(dataset.size(), options.seed), group.rank(), options.epochs,
            options.dtype, device),
      journal_(
          group.size(),
          {.epochs = options.epochs, .steps = planned_, .global_batch = options.global_batch}) {
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
  static_cast<data::Batch&>(batch_) = feed_.take();
  batch_.epoch = open_->samples.epoch + 1;
  ++batch_.step;
  feed_.draw(balancer_.shares());
  since_handed_out_ = Stopwatch();
}

const train::BatchFeed::Plan& BalancedSteps::open_plan() const {
  if (open_) return *open_;
  throw Error(ErrorCode::InvalidArgument,
              "DataParallel::step belongs into a loop over Job::balanced, once for each batch");
}

void BalancedSteps::end_step(const train::StepResult& result) {
  progress_ = journal_.add(batch_.step, *open_, result, alone_rates(), balancer_.shares());
  std::vector<balance::StepFigures> figures;
  for (const auto& rank : result.figures) {
    figures.push_back({.batch = rank.batch, .compute_seconds = rank.compute_seconds});
  }
  balancer_.observe(figures);
  open_.reset();
}

std::vector<double> BalancedSteps::alone_rates() const {
  std::vector<double> rates;
  for (std::size_t rank = 0; rank < balancer_.devices().size(); ++rank) {
    rates.push_back(balancer_.alone_rate(static_cast<int>(rank)));
  }
  return rates;
}

}  // namespace bimetal::api

#include "bimetal/progress/journal.h"

#include <algorithm>
#include <utility>

namespace bimetal::progress {

namespace {

/// NaN of nothing.
double mean(double sum, std::int64_t count) {
  return sum / static_cast<double>(count);
}

}  // namespace

Progress progress_after(const StepDone& step, const RunPlan& plan,
                        std::span<const WorkerState> workers, ProgressMeter& meter) {
  meter.count(workers);
  const auto rates = meter.recent(workers);
  const auto samples_left = static_cast<double>((plan.steps - step.number) * plan.global_batch);
  Progress progress{.epoch = step.epoch + 1,
                    .epochs = plan.epochs,
                    .step = step.number,
                    .steps = plan.steps,
                    .loss = mean(step.loss_sum, step.weight),
                    .samples_per_s = rates.samples_per_s,
                    .efficiency = rates.efficiency,
                    .seconds_left = samples_left / std::max(rates.samples_per_s, 1e-9),
                    .elapsed_s = meter.elapsed_seconds(),
                    .counts = plan.counts,
                    .shares = step.shares,
                    .rank_samples_per_s = rates.alone};
  for (const auto& worker : workers) progress.workers.push_back(worker.totals);
  return progress;
}

Progress Journal::add(const StepDone& step, std::span<const WorkerState> workers) {
  if (step.epoch != epoch_) {
    epoch_ = step.epoch;
    epoch_loss_sum_ = 0;
    epoch_weight_ = 0;
  }
  epoch_loss_sum_ += step.loss_sum;
  epoch_weight_ += step.weight;

  auto progress = progress_after(step, plan_, workers, meter_);
  history_.add({.step = progress.step,
                .elapsed_s = progress.elapsed_s,
                .loss = progress.loss,
                .samples_per_s = progress.samples_per_s,
                .efficiency = progress.efficiency,
                .shares = progress.shares});
  return progress;
}

Report Journal::report(std::int64_t steps, std::span<const WorkerAtEnd> workers,
                       double elapsed_s) const {
  Report report{.world_size = static_cast<int>(workers.size()),
                .steps = steps,
                .elapsed_s = elapsed_s,
                .counts = plan_.counts,
                .train_loss = mean(epoch_loss_sum_, epoch_weight_),
                .history = history_.points(),
                .evaluations = evaluations_,
                .changes = changes_};
  std::vector<WorkerState> states;
  std::int64_t samples = 0;
  for (const auto& worker : workers) {
    states.push_back(worker.state);
    samples += worker.state.totals.samples;
  }
  const auto rates = rates_over(elapsed_s, states);
  report.samples_per_s = rates.samples_per_s;
  report.efficiency = rates.efficiency;
  for (std::size_t i = 0; i < workers.size(); ++i) {
    const auto& totals = states[i].totals;
    report.bytes_sent += static_cast<std::int64_t>(totals.bytes_sent);
    report.workers.push_back({.rank = workers[i].number,
                              .host = workers[i].place.host,
                              .device = workers[i].place.device,
                              .share = static_cast<double>(totals.samples) /
                                       static_cast<double>(std::max<std::int64_t>(samples, 1)),
                              .samples = totals.samples,
                              .compute_s = totals.compute_s,
                              .communicate_s = totals.communicate_s,
                              .wait_s = totals.wait_s,
                              .samples_per_s_alone = rates.alone[i]});
  }
  return report;
}

}  // namespace bimetal::progress

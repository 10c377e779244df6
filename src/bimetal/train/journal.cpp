#include "bimetal/train/journal.h"

#include <algorithm>
#include <numeric>

#include "bimetal/train/worker_summary.h"

namespace bimetal::train {
namespace {

double loss_sum(std::span<const RankFigures> figures) {
  return std::accumulate(figures.begin(), figures.end(), 0.0,
                         [](double sum, const auto& rank) { return sum + rank.loss_sum; });
}

}  // namespace

void Journal::add_times(const StepResult& result) {
  meter_.count(result.figures, result.applied);
  communicate_seconds_ += result.communicate_seconds;
  wait_seconds_ += result.wait_seconds;
}

void Journal::add_repeated(const StepResult& result) {
  add_times(result);
}

std::vector<WorkerTotals> Journal::totals(std::span<const RankFigures> figures) const {
  std::vector<WorkerTotals> totals;
  for (const auto& figures_of_rank : figures) {
    const auto rank = static_cast<int>(totals.size());
    totals.push_back({.samples = meter_.samples(rank),
                      .compute_s = meter_.compute_seconds(rank),
                      .communicate_s = figures_of_rank.communicate_seconds,
                      .wait_s = figures_of_rank.wait_seconds,
                      .bytes_sent = figures_of_rank.bytes_sent});
  }
  return totals;
}

Progress Journal::add(std::int64_t step, const BatchFeed::Plan& plan, const StepResult& result,
                      std::span<const double> alone, const balance::Shares& next) {
  add_times(result);
  if (plan.before.epoch != plan.samples.epoch) {
    epoch_loss_sum_ = 0;
    epoch_samples_ = 0;
  }
  const auto loss = loss_sum(result.figures);
  epoch_loss_sum_ += loss;
  epoch_samples_ += plan.samples.total;

  const auto rates = meter_.recent(alone);
  const auto samples_left = static_cast<double>((plan_.steps - step) * plan_.global_batch);
  Progress progress{.epoch = plan.samples.epoch + 1,
                    .epochs = plan_.epochs,
                    .step = step,
                    .steps = plan_.steps,
                    .loss = loss / static_cast<double>(plan.samples.total),
                    .samples_per_s = rates.samples_per_s,
                    .efficiency = rates.efficiency,
                    .seconds_left = samples_left / rates.samples_per_s,
                    .elapsed_s = meter_.elapsed_seconds(),
                    .shares = next,
                    .rank_samples_per_s = rates.alone,
                    .workers = totals(result.figures)};
  history_.add({.step = step,
                .elapsed_s = meter_.elapsed_seconds(),
                .loss = progress.loss,
                .samples_per_s = progress.samples_per_s,
                .efficiency = progress.efficiency,
                .shares = next});
  return progress;
}

Report Journal::report(comm::Group group, std::int64_t steps, const std::string& host,
                       const std::string& device, std::span<const double> alone,
                       std::chrono::milliseconds timeout) const {
  const auto summaries = gather_summaries(group,
                                          {.host = host,
                                           .device = device,
                                           .elapsed_seconds = meter_.elapsed_seconds(),
                                           .communicate_seconds = communicate_seconds_,
                                           .wait_seconds = wait_seconds_,
                                           .bytes_sent = group.bytes_sent()},
                                          timeout);
  const auto rates = meter_.whole_run(alone);
  Report report;
  report.world_size = group.size();
  report.steps = steps;
  report.train_loss = epoch_loss_sum_ / static_cast<double>(epoch_samples_);
  report.evaluations = evaluations_;
  report.test_accuracy = last_accuracy(evaluations_);
  report.history = history_.points();
  double samples = 0;
  for (int rank = 0; rank < group.size(); ++rank) {
    samples += static_cast<double>(meter_.samples(rank));
  }
  for (int rank = 0; rank < group.size(); ++rank) {
    const auto& summary = summaries[static_cast<std::size_t>(rank)];
    // Every rank's clock shows nearly the same; the slowest makes the report equal on all.
    report.elapsed_s = std::max(report.elapsed_s, summary.elapsed_seconds);
    report.bytes_sent += static_cast<std::int64_t>(summary.bytes_sent);
    report.workers.push_back(
        {.rank = rank,
         .host = summary.host,
         .device = summary.device,
         .share = samples > 0 ? static_cast<double>(meter_.samples(rank)) / samples : 0,
         .samples = meter_.samples(rank),
         .compute_s = meter_.compute_seconds(rank),
         .communicate_s = summary.communicate_seconds,
         .wait_s = summary.wait_seconds,
         .samples_per_s_alone = rates.alone[static_cast<std::size_t>(rank)]});
  }
  const auto alone_sum = std::accumulate(rates.alone.begin(), rates.alone.end(), 0.0);
  if (report.elapsed_s > 0) report.samples_per_s = samples / report.elapsed_s;
  if (alone_sum > 0) report.efficiency = report.samples_per_s / alone_sum;
  return report;
}

}  // namespace bimetal::train

#include "bimetal/progress/journal.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

namespace bimetal::progress {
namespace {

constexpr double kRisen = 0.25, kRisenOfFirst = 0.1, kFallen = 0.03;

bool any_old_gradients(const Progress& progress) {
  return std::ranges::any_of(progress.workers, [](const WorkerTotals& worker) {
    return worker.staleness && worker.staleness->max > 0;
  });
}

/// NaN of nothing.
double mean(double sum, std::int64_t count) {
  return sum / static_cast<double>(count);
}

}  // namespace

std::optional<std::string> LossTrend::add(double loss) {
  if (told_ || !std::isfinite(loss)) return std::nullopt;
  if (!first_) first_ = least_ = loss;
  sum_ += loss;
  if (++counted_ < kSpan) return std::nullopt;
  const auto mean = sum_ / kSpan;
  sum_ = 0;
  counted_ = 0;
  auto word = close_span(mean);
  told_ = word.has_value();
  return word;
}

std::optional<std::string> LossTrend::close_span(double mean) {
  const auto above = std::max(kRisen * std::abs(least_), kRisenOfFirst * std::abs(*first_));
  risen_ = mean > least_ + above ? risen_ + 1 : 0;
  if (risen_ == 2) {
    return fmt::format("the loss has risen again, from {:.4g} to {:.4g}", least_, mean);
  }
  least_ = std::min(least_, mean);
  sum_of_means_ += mean;
  const auto fallen = *first_ - sum_of_means_ / static_cast<double>(++spans_);
  if (fresh_ && spans_ == kPatience && fallen < kFallen * std::abs(*first_)) {
    return fmt::format("the loss has not fallen in {} steps: it was {:.4g} and is {:.4g}",
                       kPatience * kSpan, *first_, mean);
  }
  return std::nullopt;
}

void tell_step(const Progress& progress, LossTrend& trend, Observer& observer) {
  observer.on_step(progress);
  const auto word = trend.add(progress.loss);
  if (!word) return;
  observer.on_notice(
      *word + (any_old_gradients(progress)
                   ? ". Gradients that are some steps old bear a far smaller learning rate: "
                     "servers.consistency = \"sync\" has none (docs/parameter_server.md says how "
                     "much smaller)"
                   : ". A lower learning rate, train.warmup_steps or train.clip_norm may help"));
}

namespace {

// "Recent" weighs a step e times less for each such span that has passed since.
constexpr double kRecentSeconds = 3.0;

double rate(double samples, double seconds) {
  return seconds > 0 ? samples / seconds : 0;
}

Rates rates_of(double samples, double seconds, std::vector<double> alone) {
  Rates rates{.samples_per_s = rate(samples, seconds), .alone = std::move(alone)};
  rates.efficiency =
      rate(rates.samples_per_s, std::accumulate(rates.alone.begin(), rates.alone.end(), 0.0));
  return rates;
}

}  // namespace

Rates rates_over(double seconds, std::span<const WorkerState> workers) {
  double all = 0;
  std::vector<double> alone;
  for (const auto& [totals, here, expected] : workers) {
    const auto samples = static_cast<double>(totals.samples);
    all += samples;
    alone.push_back(totals.compute_s > 0 ? samples / totals.compute_s : expected);
  }
  return rates_of(all, seconds, std::move(alone));
}

void ProgressMeter::start() {
  running_ = true;
  since_last_ = Stopwatch();
}

void ProgressMeter::stop() {
  pass_time();
  running_ = false;
}

void ProgressMeter::pass_time() {
  const auto seconds = running_ ? since_last_.seconds() : 0;
  since_last_ = Stopwatch();
  elapsed_ += seconds;
  const auto fade = std::exp(-seconds / kRecentSeconds);
  recent_seconds_ = recent_seconds_ * fade + seconds;
  for (auto& worker : recent_) {
    worker.samples *= fade;
    worker.compute_seconds *= fade;
  }
}

void ProgressMeter::go_on(double elapsed_s, std::span<const WorkerTotals> totals) {
  elapsed_ = elapsed_s;
  recent_.clear();
  for (const auto& worker : totals) recent_.push_back({.counted = worker});
}

void ProgressMeter::count(std::span<const WorkerState> workers) {
  pass_time();
  recent_.resize(workers.size());
  for (std::size_t i = 0; i < workers.size(); ++i) {
    auto& [samples, compute_seconds, counted] = recent_[i];
    const auto& totals = workers[i].totals;
    samples += static_cast<double>(totals.samples - counted.samples);
    compute_seconds += totals.compute_s - counted.compute_s;
    counted = totals;
  }
}

Rates ProgressMeter::recent(std::span<const WorkerState> workers) const {
  double all = 0;
  std::vector<double> alone;
  for (std::size_t i = 0; i < workers.size(); ++i) {
    const auto recent = i < recent_.size() ? recent_[i] : Recent();
    if (workers[i].here) all += recent.samples;
    const auto own = recent.compute_seconds > 0 ? recent.samples / recent.compute_seconds
                                                : workers[i].expected_alone;
    alone.push_back(workers[i].here ? own : 0);
  }
  return rates_of(all, recent_seconds_, std::move(alone));
}

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

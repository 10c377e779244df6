#include "bimetal/progress/progress_meter.h"

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

}  // namespace bimetal::progress

#include "bimetal/progress/loss_trend.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

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

}  // namespace bimetal::progress

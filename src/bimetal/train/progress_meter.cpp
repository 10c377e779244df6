#include "bimetal/train/progress_meter.h"

#include <cmath>
#include <numeric>

namespace bimetal::train {
namespace {

// "Recent" weighs a step e times less for each such span that has passed since.
constexpr double kRecentSeconds = 3.0;

}  // namespace

ProgressMeter::ProgressMeter(int ranks) {
  for (auto* tally : {&whole_, &recent_}) {
    tally->samples.resize(static_cast<std::size_t>(ranks));
    tally->compute_seconds.resize(static_cast<std::size_t>(ranks));
  }
}

void ProgressMeter::start() {
  since_last_ = Stopwatch();
}

void ProgressMeter::count(std::span<const RankFigures> figures, bool applied) {
  const auto seconds = since_last_.seconds();
  since_last_ = Stopwatch();
  recent_.fade(std::exp(-seconds / kRecentSeconds));
  for (auto* tally : {&whole_, &recent_}) {
    tally->seconds += seconds;
    if (!applied) continue;
    for (std::size_t rank = 0; rank < figures.size(); ++rank) {
      tally->samples[rank] += static_cast<double>(figures[rank].batch);
      tally->compute_seconds[rank] += figures[rank].compute_seconds;
    }
  }
}

std::int64_t ProgressMeter::samples(int rank) const {
  return std::llround(whole_.samples[static_cast<std::size_t>(rank)]);
}

double ProgressMeter::compute_seconds(int rank) const {
  return whole_.compute_seconds[static_cast<std::size_t>(rank)];
}

Rates ProgressMeter::whole_run(std::span<const double> predicted_alone) const {
  return whole_.rates(predicted_alone);
}

Rates ProgressMeter::recent(std::span<const double> predicted_alone) const {
  return recent_.rates(predicted_alone);
}

void ProgressMeter::Tally::fade(double factor) {
  seconds *= factor;
  for (auto& value : samples) value *= factor;
  for (auto& value : compute_seconds) value *= factor;
}

Rates ProgressMeter::Tally::rates(std::span<const double> predicted_alone) const {
  Rates rates;
  const auto all = std::accumulate(samples.begin(), samples.end(), 0.0);
  if (seconds > 0) rates.samples_per_s = all / seconds;
  for (std::size_t rank = 0; rank < samples.size(); ++rank) {
    rates.alone.push_back(compute_seconds[rank] > 0 ? samples[rank] / compute_seconds[rank]
                                                    : predicted_alone[rank]);
  }
  const auto alone = std::accumulate(rates.alone.begin(), rates.alone.end(), 0.0);
  if (alone > 0) rates.efficiency = rates.samples_per_s / alone;
  return rates;
}

}  // namespace bimetal::train

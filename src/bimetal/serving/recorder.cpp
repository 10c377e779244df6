#include "bimetal/serving/recorder.h"

#include <algorithm>
#include <vector>

namespace bimetal::serving {

void Recorder::answered(std::int64_t samples, std::chrono::duration<double> latency) {
  const std::scoped_lock lock(mutex_);
  latencies_[counts_.requests++ % latencies_.size()] = latency.count();
  counts_.samples += static_cast<std::uint64_t>(samples);
}

void Recorder::computed_batch() {
  const std::scoped_lock lock(mutex_);
  ++counts_.batches;
}

void Recorder::refused() {
  const std::scoped_lock lock(mutex_);
  ++counts_.refused;
}

void Recorder::set_clients(std::size_t clients) {
  const std::scoped_lock lock(mutex_);
  counts_.clients = clients;
}

Figures Recorder::figures() const {
  std::vector<double> known;
  Figures figures;
  {
    const std::scoped_lock lock(mutex_);
    figures = counts_;
    const auto count = std::min<std::size_t>(counts_.requests, latencies_.size());
    known.assign(latencies_.begin(), latencies_.begin() + static_cast<std::ptrdiff_t>(count));
  }
  if (known.empty()) return figures;
  std::ranges::sort(known);
  const auto at = [&](double part) {
    return known[static_cast<std::size_t>(part * static_cast<double>(known.size() - 1) + 0.5)];
  };
  figures.latency_median_s = at(0.5);
  figures.latency_p99_s = at(0.99);
  return figures;
}

}  // namespace bimetal::serving

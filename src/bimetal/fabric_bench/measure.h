#pragma once
// Times one operation at one size, on all ranks together.

#include <chrono>
#include <cstddef>
#include <optional>

#include "bimetal/comm/group.h"
#include "bimetal/fabric_bench/bench_options.h"

namespace bimetal::fabric_bench {

/// Seconds are of the rank on which a run took longest; the same on every rank.
struct Measurement {
  std::size_t bytes = 0;
  int iterations = 0;
  double mean_s = 0;  ///< of runs one after the other, as a program makes them
  double least_s = 0;
  double median_s = 0;
  double p99_s = 0;
  double bus_factor = 1;  ///< see Exercise
  double cpu_s = 0;       ///< processor time of one run, user and system, over all ranks

  double algorithm_bytes_per_s() const { return static_cast<double>(bytes) / mean_s; }
  double bus_bytes_per_s() const { return algorithm_bytes_per_s() * bus_factor; }
};

/// Verifies, warms up, and measures. Collective. Error(CorruptData) for a wrong result.
Measurement measure(comm::Group group, const BenchOptions& options, std::size_t bytes);

}  // namespace bimetal::fabric_bench

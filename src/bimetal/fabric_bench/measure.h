#pragma once
// Times one operation at one size, on all ranks together.

#include <chrono>
#include <cstddef>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "bimetal/comm/dtype.h"
#include "bimetal/comm/group.h"
#include "bimetal/fabric_bench/bench_options.h"

namespace bimetal::fabric_bench {

// Data whose sums are known without computing them as the fabric does: a short pattern of small
// whole numbers, over and over, different on each rank.

/// One value for each of kPeriod consecutive elements.
using Pattern = std::vector<double>;
inline constexpr std::size_t kPeriod = 61;  ///< a prime: pieces of a buffer begin anywhere in it

/// What `rank` contributes. Sums over up to 40 ranks are exact in every type.
Pattern pattern_of(int rank);

/// The sum over `size` ranks.
Pattern sum_of_patterns(int size);

/// Fills `memory` with the pattern, from its element `first` on.
void fill(std::span<std::byte> memory, comm::DType dtype, const Pattern& pattern,
          std::size_t first = 0);

/// Empty if `memory` holds the pattern from its element `first` on, else what is wrong with it.
std::string difference(std::span<const std::byte> memory, comm::DType dtype, const Pattern& pattern,
                       std::size_t first = 0);

/// ‖memory − factor × pattern‖ / ‖factor × pattern‖, 0 for no elements.
double relative_error(std::span<const std::byte> memory, comm::DType dtype, const Pattern& pattern,
                      double factor);

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

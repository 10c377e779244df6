#include "bimetal/fabric_bench/measure.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

#include "bimetal/base/deadline.h"
#include "bimetal/base/error.h"
#include "bimetal/comm/reduce/reduce_kernels.h"
#include "bimetal/fabric_bench/report.h"

namespace bimetal::fabric_bench {
namespace {

using comm::DType;

template <typename T>
T as(double value) {
  if constexpr (std::is_arithmetic_v<T>) {
    return static_cast<T>(value);
  } else {
    return T(static_cast<float>(value));
  }
}

// One period of the pattern as the type holds it, beginning at element `first`.
std::vector<std::byte> encoded(const Pattern& pattern, DType dtype, std::size_t first) {
  std::vector<std::byte> bytes(pattern.size() * size_of(dtype));
  comm::with_type(dtype, [&]<typename T>(T) {
    for (std::size_t i = 0; i < pattern.size(); ++i) {
      const T value = as<T>(pattern[(first + i) % pattern.size()]);
      std::memcpy(bytes.data() + i * sizeof(T), &value, sizeof(T));
    }
  });
  return bytes;
}

}  // namespace

Pattern pattern_of(int rank) {
  Pattern pattern(kPeriod);
  for (std::size_t i = 0; i < kPeriod; ++i) {
    pattern[i] = static_cast<double>((i * 3 + static_cast<std::size_t>(rank) * 7) % 11 % 4);
  }
  return pattern;
}

Pattern sum_of_patterns(int size) {
  Pattern sum(kPeriod);
  for (int rank = 0; rank < size; ++rank) {
    const Pattern one = pattern_of(rank);
    std::ranges::transform(sum, one, sum.begin(), std::plus());
  }
  return sum;
}

void fill(std::span<std::byte> memory, DType dtype, const Pattern& pattern, std::size_t first) {
  const auto period = encoded(pattern, dtype, first);
  for (std::size_t at = 0; at < memory.size(); at += period.size()) {
    std::memcpy(memory.data() + at, period.data(), std::min(period.size(), memory.size() - at));
  }
}

std::string difference(std::span<const std::byte> memory, DType dtype, const Pattern& pattern,
                       std::size_t first) {
  const auto period = encoded(pattern, dtype, first);
  for (std::size_t at = 0; at < memory.size(); at += period.size()) {
    const auto bytes = std::min(period.size(), memory.size() - at);
    if (std::memcmp(memory.data() + at, period.data(), bytes) == 0) continue;
    const auto [here, there] = std::mismatch(memory.begin() + static_cast<std::ptrdiff_t>(at),
                                             memory.end(), period.begin(), period.end());
    const auto element = static_cast<std::size_t>(here - memory.begin()) / size_of(dtype);
    return fmt::format("element {} of {} is not {}", element, memory.size() / size_of(dtype),
                       pattern[(first + element) % pattern.size()]);
  }
  return {};
}

double relative_error(std::span<const std::byte> memory, DType dtype, const Pattern& pattern,
                      double factor) {
  double errors = 0, all = 0;
  comm::with_type(dtype, [&]<typename T>(T) {
    for (std::size_t i = 0; i < memory.size() / sizeof(T); ++i) {
      T value;
      std::memcpy(&value, memory.data() + i * sizeof(T), sizeof(T));
      const double wanted = factor * pattern[i % pattern.size()];
      double got;
      if constexpr (std::is_arithmetic_v<T>) {
        got = static_cast<double>(value);
      } else {
        got = static_cast<double>(static_cast<float>(value));
      }
      errors += (got - wanted) * (got - wanted);
      all += wanted * wanted;
    }
  });
  return all > 0 ? std::sqrt(errors / all) : 0;
}

namespace {

using Clock = std::chrono::steady_clock;

constexpr int kLeastRuns = 5;
constexpr int kMostRuns = 20'000;
constexpr int kWarmUpRuns = 3;

double seconds(Clock::duration span) {
  return std::chrono::duration<double>(span).count();
}

class Timing {
 public:
  Timing(comm::Group group, const BenchOptions& options, std::size_t bytes)
      : group_(group),
        options_(options),
        exercise_(group, options.operation, options.dtype, bytes, options.compression,
                  options.shards) {}

  Measurement measure() {
    if (options_.verify) verify();
    exercise_.fill();
    const int runs = choose_runs();
    const double cpu_before = processor_seconds();
    const auto begun = Clock::now();
    std::vector<double> spans = time(runs);
    double whole = seconds(Clock::now() - begun);
    double cpu = processor_seconds() - cpu_before;
    // Every rank prints and decides by the same figures.
    agree(comm::buffer(spans), comm::ReduceOp::max);
    agree({&whole, 1, comm::DType::float64}, comm::ReduceOp::max);
    agree({&cpu, 1, comm::DType::float64}, comm::ReduceOp::sum);
    std::ranges::sort(spans);
    const auto at = [&](double quantile) {
      return spans[static_cast<std::size_t>(quantile * static_cast<double>(spans.size() - 1))];
    };
    return {exercise_.bytes(), runs,     whole / runs,           spans.front(),
            at(0.5),           at(0.99), exercise_.bus_factor(), cpu / runs};
  }

 private:
  Deadline deadline() const { return Deadline::after(milliseconds_of(options_.timeout_s)); }

  void agree(comm::Buffer figures, comm::ReduceOp op) const {
    comm::Group group = group_;
    group.all_reduce(figures, op, deadline()).wait();
  }

  void verify() {
    exercise_.fill();
    agree_on_start();
    exercise_.run(deadline());
    const auto fault = exercise_.fault();
    if (fault.empty()) return;
    throw Error(
        ErrorCode::CorruptData,
        fmt::format("{} of {} bytes is wrong on rank {}: {}", comm::to_string(options_.operation),
                    exercise_.bytes(), group_.rank(), fault),
        group_.rank());
  }

  void agree_on_start() const {
    comm::Group group = group_;
    group.barrier(deadline()).wait();
  }

  /// Warms up, and finds out how many runs fit the time.
  int choose_runs() {
    double longest = 0;
    for (int i = 0; i < kWarmUpRuns; ++i) {
      const auto begun = Clock::now();
      exercise_.run(deadline());
      longest = seconds(Clock::now() - begun);  // the last: the first ones pay for cold memory
    }
    agree({&longest, 1, comm::DType::float64}, comm::ReduceOp::max);
    if (options_.iterations > 0) return options_.iterations;
    const double fitting = options_.seconds_per_size / std::max(longest, 1e-9);
    return static_cast<int>(std::clamp<double>(fitting, kLeastRuns, kMostRuns));
  }

  std::vector<double> time(int runs) {
    std::vector<double> spans(static_cast<std::size_t>(runs));
    auto before = Clock::now();
    for (double& span : spans) {
      exercise_.run(deadline());
      const auto now = Clock::now();
      span = seconds(now - before);
      before = now;
    }
    return spans;
  }

  const comm::Group group_;
  const BenchOptions& options_;
  Exercise exercise_;
};

}  // namespace

Measurement measure(comm::Group group, const BenchOptions& options, std::size_t bytes) {
  return Timing(std::move(group), options, bytes).measure();
}

}  // namespace bimetal::fabric_bench

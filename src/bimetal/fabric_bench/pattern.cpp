#include "bimetal/fabric_bench/pattern.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>

#include "bimetal/comm/reduce/reduce_operators.h"

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

}  // namespace bimetal::fabric_bench

#pragma once
// Data on which compression is tried.

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <random>
#include <string>
#include <vector>

namespace bimetal::comm {

struct SampleValues {
  std::string name;
  std::vector<float> values;
};

/// Random, constant, tiny, huge, mixed and zero elements; all finite.
inline std::vector<SampleValues> finite_samples(std::size_t count) {
  std::mt19937 random(7);
  std::normal_distribution<float> normal;
  std::uniform_int_distribution<int> exponent(-140, 120);
  const auto made = [&](const char* name, auto element) {
    SampleValues sample{name, std::vector<float>(count)};
    for (float& value : sample.values) value = element();
    return sample;
  };
  return {
      made("normal", [&] { return normal(random); }),
      made("constant", [] { return -0.37f; }),
      made("zero", [] { return 0.0f; }),
      made("tiny", [&] { return normal(random) * 1e-30f; }),
      made("subnormal", [&] { return normal(random) * 1e-41f; }),
      made("huge", [&] { return std::clamp(normal(random), -3.4f, 3.4f) * 1e38f; }),
      made("largest",
           [&] {
             return normal(random) < 0 ? -std::numeric_limits<float>::max()
                                       : std::numeric_limits<float>::max();
           }),
      made("all exponents", [&] { return std::ldexp(normal(random), exponent(random)); }),
      made("one among many", [&, i = 0]() mutable { return i++ % 97 == 5 ? 1000.0f : 1e-3f; }),
  };
}

inline constexpr std::size_t kSampleCounts[] = {0, 1, 2, 63, 127, 128, 129, 511, 512, 513, 5000};

}  // namespace bimetal::comm

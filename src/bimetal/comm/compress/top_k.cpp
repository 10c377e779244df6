#include "bimetal/comm/compress/top_k.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "bimetal/base/error.h"

namespace bimetal::comm {
namespace {

constexpr std::size_t kDigits = std::size_t{1} << 15;  // the upper half of a magnitude's 31 bits
constexpr std::size_t kWarmupStages = 4;

std::uint32_t magnitude_bits(const float& value) {
  std::uint32_t bits;
  std::memcpy(&bits, &value, sizeof(bits));
  return bits & 0x7fffffffu;
}

// The digit at which a count from above reaches `k`, and how many of its elements belong to it.
struct Boundary {
  std::uint32_t digit;
  std::size_t wanted;
};

Boundary boundary_of(const std::vector<std::uint32_t>& counts, std::size_t k) {
  std::size_t digit = counts.size();
  std::size_t wanted = k;
  while (counts[--digit] < wanted) wanted -= counts[digit];
  return {static_cast<std::uint32_t>(digit), wanted};
}

struct Threshold {
  std::uint32_t bits;  // all elements above it are chosen,
  std::size_t equal;   // and this many of those equal to it
};

// Radix selection on the magnitude's bits, which order as the magnitudes do.
Threshold threshold_of(std::span<const float> values, std::size_t k) {
  std::vector<std::uint32_t> upper(kDigits), lower(std::size_t{1} << 16);
  for (const float& value : values) ++upper[magnitude_bits(value) >> 16];
  const Boundary high = boundary_of(upper, k);
  for (const float& value : values) {
    const std::uint32_t bits = magnitude_bits(value);
    if (bits >> 16 == high.digit) ++lower[bits & 0xffffu];
  }
  const Boundary low = boundary_of(lower, high.wanted);
  return {high.digit << 16 | low.digit, low.wanted};
}

}  // namespace

std::vector<std::uint32_t> largest_elements(std::span<const float> values, std::size_t k) {
  if (k == 0) return {};
  auto [threshold, equal] = threshold_of(values, k);
  std::vector<std::uint32_t> chosen(k);
  std::size_t found = 0;
  for (std::size_t i = 0; found < k; ++i) {
    const std::uint32_t bits = magnitude_bits(values[i]);
    if (bits < threshold || (bits == threshold && equal == 0)) continue;
    if (bits == threshold) --equal;
    chosen[found++] = static_cast<std::uint32_t>(i);
  }
  return chosen;
}

void encode_list(std::span<const float> values, std::span<const std::uint32_t> indices,
                 std::span<std::byte> out) {
  std::byte* const sent_values = out.data() + 4 * indices.size();
  for (std::size_t i = 0; i < indices.size(); ++i) {
    std::memcpy(out.data() + 4 * i, &indices[i], 4);
    std::memcpy(sent_values + 4 * i, &values[indices[i]], 4);
  }
}

void add_list(std::span<const std::byte> encoded, std::span<float> sums) {
  if (encoded.size() % list_bytes(1) != 0) {
    throw Error(ErrorCode::CorruptData,
                fmt::format("a list of elements has {} bytes, no multiple of {}", encoded.size(),
                            list_bytes(1)));
  }
  const std::size_t k = encoded.size() / list_bytes(1);
  const auto index_at = [&](std::size_t i) {
    std::uint32_t index;
    std::memcpy(&index, encoded.data() + 4 * i, sizeof(index));
    return index;
  };
  for (std::size_t i = 0; i < k; ++i) {
    if (index_at(i) >= sums.size() || (i > 0 && index_at(i) <= index_at(i - 1))) {
      throw Error(ErrorCode::CorruptData,
                  fmt::format("entry {} of a list of elements has index {}, of {} elements", i,
                              index_at(i), sums.size()));
    }
  }
  for (std::size_t i = 0; i < k; ++i) {
    float value;
    std::memcpy(&value, encoded.data() + 4 * (k + i), sizeof(value));
    sums[index_at(i)] += value;
  }
}

double warmup_density(double density, std::int64_t step, std::int64_t warmup_steps) {
  if (step >= warmup_steps) return density;
  double stage_density = 0.25;
  for (auto stage = step * static_cast<std::int64_t>(kWarmupStages) / warmup_steps; stage > 0;
       --stage) {
    stage_density *= 0.25;
  }
  return std::max(density, stage_density);
}

}  // namespace bimetal::comm

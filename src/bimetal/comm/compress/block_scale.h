#pragma once
// The scale of one block, sent as bfloat16, whose two bytes cover float32's whole range.

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "bimetal/comm/reduce/half.h"

namespace bimetal::comm {

/// A block with a NaN or an infinity in it has a NaN for a scale, and so decodes to NaN throughout.
inline constexpr std::uint16_t kNanScale = 0x7fc0;
inline constexpr std::uint16_t kMaxScale = 0x7f7f;

inline constexpr std::uint32_t kInfinityBits = 0x7f800000u;

inline void store_scale(std::byte* scales, std::size_t block, std::uint16_t bits) {
  std::memcpy(scales + 2 * block, &bits, sizeof(bits));
}

inline float load_scale(const std::byte* scales, std::size_t block) {
  BFloat16 scale;
  std::memcpy(&scale.bits, scales + 2 * block, sizeof(scale.bits));
  return static_cast<float>(scale);
}

/// The largest magnitude among the values, as the bits of a float32; above that of infinity if one
/// of them is a NaN, for without its sign a float's bits grow with it.
inline std::uint32_t largest_magnitude(const float* values, std::size_t count) {
  std::int32_t largest = 0;  // signed: processors compare those more widely
  for (std::size_t i = 0; i < count; ++i) {
    std::int32_t bits;
    std::memcpy(&bits, values + i, sizeof(bits));
    bits &= 0x7fffffff;
    largest = bits > largest ? bits : largest;
  }
  return static_cast<std::uint32_t>(largest);
}

}  // namespace bimetal::comm

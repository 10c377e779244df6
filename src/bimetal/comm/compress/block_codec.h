#pragma once
// int8 and int4 by blocks of kQuantBlock elements. A block's elements are whole multiples, within
// ±127 or ±7, of one scale: its largest magnitude / 127 or / 7. See dense_reduction.h.

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

#include "bimetal/comm/reduce/reduce_operators.h"

namespace bimetal::comm {

std::size_t int8_bytes(std::size_t count) noexcept;
std::size_t int4_bytes(std::size_t count) noexcept;

void encode_int8(std::span<const float> values, std::byte* out);
void encode_int4(std::span<const float> values, std::byte* out);

/// Read int8_bytes(values.size()) or int4_bytes(values.size()) bytes.
void decode_int8(const std::byte* encoded, std::span<float> values);
void decode_int4(const std::byte* encoded, std::span<float> values);

// The scale of one block, sent as bfloat16, whose two bytes cover float32's whole range.

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

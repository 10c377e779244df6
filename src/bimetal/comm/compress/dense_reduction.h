#pragma once
// Shorter forms of a run of float32 that keep every element: float16, bfloat16, int8, int4 and
// sign. Pure functions; the same bits on every processor. Layouts and error bounds:
// docs/compression.md.
//
// One bit per element by blocks of kSignBlock: its sign, times the mean magnitude of the block's
// elements (Karimireddy et al., "Error Feedback Fixes SignSGD and other Gradient Compression
// Schemes", ICML 2019, by blocks as in Zheng et al., NeurIPS 2019).
//
// int8 and int4 by blocks of kQuantBlock elements. A block's elements are whole multiples, within
// ±127 or ±7, of one scale: its largest magnitude / 127 or / 7.

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

#include "bimetal/comm/compress/compression.h"
#include "bimetal/comm/reduce/reduce_kernels.h"

namespace bimetal::comm {

/// Elements that share a scale, where runs are best cut: the last block of a run may be shorter.
inline constexpr std::size_t kQuantBlock = 128;
inline constexpr std::size_t kSignBlock = 512;

/// Whether the functions below know the scheme.
bool is_dense(Scheme scheme) noexcept;

/// Bytes of `count` encoded elements.
std::size_t encoded_bytes(Scheme scheme, std::size_t count) noexcept;

/// Writes encoded_bytes(scheme, values.size()) bytes to the beginning of `out`, which holds them.
void encode(Scheme scheme, std::span<const float> values, std::span<std::byte> out);

/// Fills `values` from what encode() made of as many. Any bytes of the right length decode to some
/// numbers (NaN and infinities among them); another length is Error(CorruptData).
void decode(Scheme scheme, std::span<const std::byte> encoded, std::span<float> values);

/// The last block of a run is sent whole, however few elements it has.
std::size_t sign_bytes(std::size_t count) noexcept;

void encode_sign(std::span<const float> values, std::byte* out);

/// Reads sign_bytes(values.size()) bytes.
void decode_sign(const std::byte* encoded, std::span<float> values);

// float32 as float16 or bfloat16, rounded to nearest, ties to even.

inline std::size_t half_bytes(std::size_t count) noexcept {
  return 2 * count;
}

void encode_float16(std::span<const float> values, std::byte* out);
void encode_bfloat16(std::span<const float> values, std::byte* out);

/// Read half_bytes(values.size()) bytes.
void decode_float16(const std::byte* encoded, std::span<float> values);
void decode_bfloat16(const std::byte* encoded, std::span<float> values);

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

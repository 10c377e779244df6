#include "bimetal/comm/compress/block_codec.h"

#include <algorithm>
#include <bit>
#include <cstdint>

#include "bimetal/comm/compress/dense_reduction.h"

namespace bimetal::comm {
namespace {

constexpr std::size_t kBlock = kQuantBlock;
constexpr std::size_t kHalfBlock = kBlock / 2;

// Blocks whose elements are all smaller become zeros: above it scales and their inverses are normal
// numbers, which every processor treats alike.
constexpr float kSmallest = 0x1p-118f;

// Added to a number below 2^22 it leaves the nearest integer, ties to even, in the lowest bits.
constexpr float kRounding = 0x1.8p23f;

std::size_t blocks_of(std::size_t count) noexcept {
  return (count + kBlock - 1) / kBlock;
}

// Writes the block's scale and returns by what its elements are multiplied, 0 for all-zero codes.
// The rounding of the scale, at most 1 in 256, takes no element beyond Max + ½.
template <int Max>
float write_scale(const float* values, std::size_t count, std::byte* scales, std::size_t block) {
  const std::uint32_t largest = largest_magnitude(values, count);
  const float magnitude = std::bit_cast<float>(largest);
  if (largest >= kInfinityBits) {
    store_scale(scales, block, kNanScale);
    return 0;
  }
  if (magnitude < kSmallest) {
    store_scale(scales, block, 0);
    return 0;
  }
  const BFloat16 scale(magnitude / static_cast<float>(Max));
  store_scale(scales, block, scale.bits);
  return 1.0f / static_cast<float>(scale);
}

std::int32_t nearest(float value) {
  return std::bit_cast<std::int32_t>(value + kRounding) - std::bit_cast<std::int32_t>(kRounding);
}

// An infinity times 0 is a NaN and its code undefined, so a block of zeros is written as such.
void quantize(const float* __restrict values, std::size_t count, float inverse,
              std::int8_t* __restrict codes) {
  if (inverse == 0) {
    std::fill_n(codes, count, std::int8_t{0});
    return;
  }
  for (std::size_t i = 0; i < count; ++i) {
    codes[i] = static_cast<std::int8_t>(nearest(values[i] * inverse));
  }
}

void dequantize(const std::int8_t* __restrict codes, std::size_t count, float scale,
                float* __restrict values) {
  for (std::size_t i = 0; i < count; ++i) values[i] = static_cast<float>(codes[i]) * scale;
}

// Calls `function(first, count, block)` for each block of a run. Whole blocks pass their length as
// a constant, by which their loops lose their bookkeeping.
template <typename Function>
void for_blocks(std::size_t count, Function function) {
  std::size_t block = 0;
  for (; (block + 1) * kBlock <= count; ++block) function(block * kBlock, kBlock, block);
  if (const std::size_t rest = count % kBlock) function(block * kBlock, rest, block);
}

// A code of four bits is the integer + 8. Byte i of a block of n elements holds element i in its
// lower half and element i + ceil(n/2) in its upper one, so that no lanes need to be shuffled.
void pack(const std::int8_t* __restrict codes, std::size_t count, std::byte* __restrict out) {
  const std::size_t low = (count + 1) / 2;
  for (std::size_t i = 0; i < low; ++i) {
    const int upper = low + i < count ? codes[low + i] : 0;
    out[i] = static_cast<std::byte>((codes[i] + 8) | (upper + 8) << 4);
  }
}

void unpack(const std::byte* __restrict in, std::size_t count, std::int8_t* __restrict codes) {
  const std::size_t low = (count + 1) / 2;
  for (std::size_t i = 0; i < low; ++i) {
    codes[i] = static_cast<std::int8_t>((std::to_integer<int>(in[i]) & 15) - 8);
  }
  for (std::size_t i = 0; i < count - low; ++i) {
    codes[low + i] = static_cast<std::int8_t>((std::to_integer<int>(in[i]) >> 4) - 8);
  }
}

}  // namespace

std::size_t int8_bytes(std::size_t count) noexcept {
  return 2 * blocks_of(count) + count;
}

std::size_t int4_bytes(std::size_t count) noexcept {
  return 2 * blocks_of(count) + count / kBlock * kHalfBlock + (count % kBlock + 1) / 2;
}

void encode_int8(std::span<const float> values, std::byte* out) {
  auto* const codes = reinterpret_cast<std::int8_t*>(out + 2 * blocks_of(values.size()));
  for_blocks(values.size(), [&](std::size_t first, std::size_t count, std::size_t block) {
    const float inverse = write_scale<127>(values.data() + first, count, out, block);
    quantize(values.data() + first, count, inverse, codes + first);
  });
}

void decode_int8(const std::byte* encoded, std::span<float> values) {
  const auto* const codes =
      reinterpret_cast<const std::int8_t*>(encoded + 2 * blocks_of(values.size()));
  for_blocks(values.size(), [&](std::size_t first, std::size_t count, std::size_t block) {
    dequantize(codes + first, count, load_scale(encoded, block), values.data() + first);
  });
}

void encode_int4(std::span<const float> values, std::byte* out) {
  std::byte* const packed = out + 2 * blocks_of(values.size());
  for_blocks(values.size(), [&](std::size_t first, std::size_t count, std::size_t block) {
    std::int8_t codes[kBlock];
    const float inverse = write_scale<7>(values.data() + first, count, out, block);
    quantize(values.data() + first, count, inverse, codes);
    pack(codes, count, packed + block * kHalfBlock);
  });
}

void decode_int4(const std::byte* encoded, std::span<float> values) {
  const std::byte* const packed = encoded + 2 * blocks_of(values.size());
  for_blocks(values.size(), [&](std::size_t first, std::size_t count, std::size_t block) {
    std::int8_t codes[kBlock];
    unpack(packed + block * kHalfBlock, count, codes);
    dequantize(codes, count, load_scale(encoded, block), values.data() + first);
  });
}

}  // namespace bimetal::comm

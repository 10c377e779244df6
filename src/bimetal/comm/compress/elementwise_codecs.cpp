#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>

#include "bimetal/comm/compress/dense_reduction.h"
#include "bimetal/comm/reduce/reduce_kernels.h"

namespace bimetal::comm {
namespace {

constexpr std::size_t kBlock = kSignBlock;
constexpr std::size_t kLanes = 16;  // words of 32 bits in a block
constexpr std::size_t kRows = kBlock / kLanes;
constexpr std::size_t kBlockBytes = kLanes * sizeof(std::uint32_t);
static_assert(kRows == 32);

std::size_t blocks_of(std::size_t count) noexcept {
  return (count + kBlock - 1) / kBlock;
}

// The mean magnitude of the first `count` elements; the block's others are zero. Summed in lanes,
// so that the order of additions, and with it the rounding, is the same on every processor.
std::uint16_t scale_of(const float* block, std::size_t count) {
  if (largest_magnitude(block, kBlock) >= kInfinityBits) return kNanScale;
  const float share = 1.0f / static_cast<float>(count);  // first, so that no sum overflows
  float sums[kLanes] = {};
  for (std::size_t row = 0; row < kRows; ++row) {
    for (std::size_t lane = 0; lane < kLanes; ++lane) {
      sums[lane] += std::fabs(block[row * kLanes + lane]) * share;
    }
  }
  float mean = 0;
  for (const float sum : sums) mean += sum;
  return std::min(BFloat16(mean).bits, kMaxScale);
}

// Bit r of word l is the sign of element 16 r + l: lanes stay in their places.
void gather_signs(const float* __restrict block, std::uint32_t* __restrict words) {
  std::uint32_t lanes[kLanes] = {};
  for (std::size_t row = 0; row < kRows; ++row) {
    for (std::size_t lane = 0; lane < kLanes; ++lane) {
      const auto bits = std::bit_cast<std::uint32_t>(block[row * kLanes + lane]);
      lanes[lane] |= bits >> 31 << row;
    }
  }
  std::memcpy(words, lanes, sizeof(lanes));
}

void spread_signs(const std::uint32_t* __restrict words, float scale, float* __restrict block) {
  const auto positive = std::bit_cast<std::uint32_t>(scale);
  for (std::size_t row = 0; row < kRows; ++row) {
    for (std::size_t lane = 0; lane < kLanes; ++lane) {
      const std::uint32_t sign = (words[lane] >> row & 1u) << 31;
      block[row * kLanes + lane] = std::bit_cast<float>(positive ^ sign);
    }
  }
}

constexpr std::size_t kHalfBlock = kQuantBlock / 2;

// Blocks whose elements are all smaller become zeros: above it scales and their inverses are normal
// numbers, which every processor treats alike.
constexpr float kSmallest = 0x1p-118f;

// Added to a number below 2^22 it leaves the nearest integer, ties to even, in the lowest bits.
constexpr float kRounding = 0x1.8p23f;

std::size_t quant_blocks_of(std::size_t count) noexcept {
  return (count + kQuantBlock - 1) / kQuantBlock;
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
  for (; (block + 1) * kQuantBlock <= count; ++block)
    function(block * kQuantBlock, kQuantBlock, block);
  if (const std::size_t rest = count % kQuantBlock) function(block * kQuantBlock, rest, block);
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

std::size_t sign_bytes(std::size_t count) noexcept {
  return blocks_of(count) * (2 + kBlockBytes);
}

void encode_sign(std::span<const float> values, std::byte* out) {
  const std::size_t blocks = blocks_of(values.size());
  for (std::size_t block = 0; block < blocks; ++block) {
    const auto own =
        values.subspan(block * kBlock, std::min(kBlock, values.size() - block * kBlock));
    float padded[kBlock] = {};
    const float* elements = own.data();
    if (own.size() < kBlock) {
      std::ranges::copy(own, padded);
      elements = padded;
    }
    std::uint32_t words[kLanes];
    gather_signs(elements, words);
    store_scale(out, block, scale_of(elements, own.size()));
    std::memcpy(out + 2 * blocks + block * kBlockBytes, words, sizeof(words));
  }
}

void decode_sign(const std::byte* encoded, std::span<float> values) {
  const std::size_t blocks = blocks_of(values.size());
  for (std::size_t block = 0; block < blocks; ++block) {
    const auto own =
        values.subspan(block * kBlock, std::min(kBlock, values.size() - block * kBlock));
    std::uint32_t words[kLanes];
    std::memcpy(words, encoded + 2 * blocks + block * kBlockBytes, sizeof(words));
    const float scale = load_scale(encoded, block);
    if (own.size() == kBlock) {
      spread_signs(words, scale, own.data());
    } else {
      float whole[kBlock];
      spread_signs(words, scale, whole);
      std::copy_n(whole, own.size(), own.data());
    }
  }
}

namespace {

// Told that the two do not overlap. memcpy, since the bytes may lie at any address.
template <typename Half>
void encode_all(const float* __restrict values, std::size_t count, std::byte* __restrict out) {
  for (std::size_t i = 0; i < count; ++i) {
    const std::uint16_t bits = Half(values[i]).bits;
    std::memcpy(out + 2 * i, &bits, sizeof(bits));
  }
}

template <typename Half>
void decode_all(const std::byte* __restrict encoded, std::size_t count, float* __restrict values) {
  for (std::size_t i = 0; i < count; ++i) {
    Half half;
    std::memcpy(&half.bits, encoded + 2 * i, sizeof(half.bits));
    values[i] = static_cast<float>(half);
  }
}

}  // namespace

void encode_float16(std::span<const float> values, std::byte* out) {
  encode_all<Float16>(values.data(), values.size(), out);
}

void encode_bfloat16(std::span<const float> values, std::byte* out) {
  encode_all<BFloat16>(values.data(), values.size(), out);
}

void decode_float16(const std::byte* encoded, std::span<float> values) {
  decode_all<Float16>(encoded, values.size(), values.data());
}

void decode_bfloat16(const std::byte* encoded, std::span<float> values) {
  decode_all<BFloat16>(encoded, values.size(), values.data());
}

std::size_t int8_bytes(std::size_t count) noexcept {
  return 2 * quant_blocks_of(count) + count;
}

std::size_t int4_bytes(std::size_t count) noexcept {
  return 2 * quant_blocks_of(count) + count / kQuantBlock * kHalfBlock +
         (count % kQuantBlock + 1) / 2;
}

void encode_int8(std::span<const float> values, std::byte* out) {
  auto* const codes = reinterpret_cast<std::int8_t*>(out + 2 * quant_blocks_of(values.size()));
  for_blocks(values.size(), [&](std::size_t first, std::size_t count, std::size_t block) {
    const float inverse = write_scale<127>(values.data() + first, count, out, block);
    quantize(values.data() + first, count, inverse, codes + first);
  });
}

void decode_int8(const std::byte* encoded, std::span<float> values) {
  const auto* const codes =
      reinterpret_cast<const std::int8_t*>(encoded + 2 * quant_blocks_of(values.size()));
  for_blocks(values.size(), [&](std::size_t first, std::size_t count, std::size_t block) {
    dequantize(codes + first, count, load_scale(encoded, block), values.data() + first);
  });
}

void encode_int4(std::span<const float> values, std::byte* out) {
  std::byte* const packed = out + 2 * quant_blocks_of(values.size());
  for_blocks(values.size(), [&](std::size_t first, std::size_t count, std::size_t block) {
    std::int8_t codes[kQuantBlock];
    const float inverse = write_scale<7>(values.data() + first, count, out, block);
    quantize(values.data() + first, count, inverse, codes);
    pack(codes, count, packed + block * kHalfBlock);
  });
}

void decode_int4(const std::byte* encoded, std::span<float> values) {
  const std::byte* const packed = encoded + 2 * quant_blocks_of(values.size());
  for_blocks(values.size(), [&](std::size_t first, std::size_t count, std::size_t block) {
    std::int8_t codes[kQuantBlock];
    unpack(packed + block * kHalfBlock, count, codes);
    dequantize(codes, count, load_scale(encoded, block), values.data() + first);
  });
}

}  // namespace bimetal::comm

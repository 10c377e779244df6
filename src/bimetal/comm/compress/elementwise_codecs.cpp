#include "bimetal/comm/compress/elementwise_codecs.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>

#include "bimetal/comm/compress/block_codec.h"
#include "bimetal/comm/compress/dense_reduction.h"
#include "bimetal/comm/reduce/reduce_operators.h"

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

}  // namespace bimetal::comm

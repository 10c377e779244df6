#include "bimetal/comm/compress/half_codec.h"

#include <cstdint>
#include <cstring>

#include "bimetal/comm/reduce/half.h"

namespace bimetal::comm {
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

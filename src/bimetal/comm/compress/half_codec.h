#pragma once
// float32 as float16 or bfloat16, rounded to nearest, ties to even. See dense_codec.h.

#include <cstddef>
#include <span>

namespace bimetal::comm {

inline std::size_t half_bytes(std::size_t count) noexcept {
  return 2 * count;
}

void encode_float16(std::span<const float> values, std::byte* out);
void encode_bfloat16(std::span<const float> values, std::byte* out);

/// Read half_bytes(values.size()) bytes.
void decode_float16(const std::byte* encoded, std::span<float> values);
void decode_bfloat16(const std::byte* encoded, std::span<float> values);

}  // namespace bimetal::comm

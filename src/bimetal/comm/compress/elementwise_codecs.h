#pragma once
// One bit per element by blocks of kSignBlock: its sign, times the mean magnitude of the block's
// elements (Karimireddy et al., "Error Feedback Fixes SignSGD and other Gradient Compression
// Schemes", ICML 2019, by blocks as in Zheng et al., NeurIPS 2019). See dense_reduction.h.

#include <cstddef>
#include <span>

namespace bimetal::comm {

/// The last block of a run is sent whole, however few elements it has.
std::size_t sign_bytes(std::size_t count) noexcept;

void encode_sign(std::span<const float> values, std::byte* out);

/// Reads sign_bytes(values.size()) bytes.
void decode_sign(const std::byte* encoded, std::span<float> values);

// float32 as float16 or bfloat16, rounded to nearest, ties to even. See dense_reduction.h.

inline std::size_t half_bytes(std::size_t count) noexcept {
  return 2 * count;
}

void encode_float16(std::span<const float> values, std::byte* out);
void encode_bfloat16(std::span<const float> values, std::byte* out);

/// Read half_bytes(values.size()) bytes.
void decode_float16(const std::byte* encoded, std::span<float> values);
void decode_bfloat16(const std::byte* encoded, std::span<float> values);

}  // namespace bimetal::comm

#pragma once
// int8 and int4 by blocks of kQuantBlock elements. A block's elements are whole multiples, within
// ±127 or ±7, of one scale: its largest magnitude / 127 or / 7. See dense_codec.h.

#include <cstddef>
#include <span>

namespace bimetal::comm {

std::size_t int8_bytes(std::size_t count) noexcept;
std::size_t int4_bytes(std::size_t count) noexcept;

void encode_int8(std::span<const float> values, std::byte* out);
void encode_int4(std::span<const float> values, std::byte* out);

/// Read int8_bytes(values.size()) or int4_bytes(values.size()) bytes.
void decode_int8(const std::byte* encoded, std::span<float> values);
void decode_int4(const std::byte* encoded, std::span<float> values);

}  // namespace bimetal::comm

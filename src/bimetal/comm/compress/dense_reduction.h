#pragma once
// Shorter forms of a run of float32 that keep every element: float16, bfloat16, int8, int4 and
// sign. Pure functions; the same bits on every processor. Layouts and error bounds:
// docs/compression.md.

#include <cstddef>
#include <span>

#include "bimetal/comm/compress/compression.h"

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

}  // namespace bimetal::comm

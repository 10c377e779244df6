#pragma once
// The k elements of largest magnitude, and lists of (index, value) as messages (Lin et al., "Deep
// Gradient Compression", ICLR 2018). Pure functions.

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace bimetal::comm {

/// Indices of the k elements of largest magnitude, ascending; among equal ones the first. A NaN is
/// larger than infinity, so that it always gets across. k ≤ values.size() < 2^32. Linear in time.
std::vector<std::uint32_t> largest_elements(std::span<const float> values, std::size_t k);

/// Bytes of a list of k elements: all indices, then all values, 4 bytes each.
constexpr std::size_t list_bytes(std::size_t k) noexcept {
  return 8 * k;
}

/// Writes list_bytes(indices.size()) bytes to the beginning of `out`, which holds them.
void encode_list(std::span<const float> values, std::span<const std::uint32_t> indices,
                 std::span<std::byte> out);

/// Adds a list to `sums`. Error(CorruptData), and nothing added, unless it is a whole number of
/// elements whose indices ascend and lie within `sums`.
void add_list(std::span<const std::byte> encoded, std::span<float> sums);

/// Deep Gradient Compression §3.3: how the density falls over the first `warmup_steps` steps, to a
/// quarter of its value four times, from 1 towards `density`, and stays there from then on.
double warmup_density(double density, std::int64_t step, std::int64_t warmup_steps);

}  // namespace bimetal::comm

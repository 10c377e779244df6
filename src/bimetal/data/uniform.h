#pragma once
// Random whole numbers that are the same with every standard library: its engines are specified to
// the bit, its distributions are not.

#include <cstdint>
#include <random>

namespace bimetal::data {

/// Uniform in 0…bound−1; bound is at least 1. Numbers below 2^64 mod bound are drawn again, which
/// leaves whole rounds of 0…bound−1.
inline std::uint64_t uniform_below(std::uint64_t bound, std::mt19937_64& engine) {
  const std::uint64_t uneven = (0 - bound) % bound;
  std::uint64_t drawn = engine();
  while (drawn < uneven) drawn = engine();
  return drawn % bound;
}

}  // namespace bimetal::data

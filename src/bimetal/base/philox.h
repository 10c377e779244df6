#pragma once
// Philox 4x32-10: random numbers as a function of a counter and a key, with no state to carry
// (Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC 2011, section
// 3.3).

#include <array>
#include <cstdint>

namespace bimetal {

using PhiloxKey = std::array<std::uint32_t, 2>;
using PhiloxBlock = std::array<std::uint32_t, 4>;

inline constexpr std::array<std::uint32_t, 2> kPhiloxMultipliers = {0xD2511F53, 0xCD9E8D57};
/// Added to the key after each round.
inline constexpr PhiloxKey kPhiloxWeyl = {0x9E3779B9, 0xBB67AE85};
inline constexpr int kPhiloxRounds = 10;

/// Four numbers, evenly spread over 0 … 2³² − 1, for each counter.
constexpr PhiloxBlock philox(PhiloxBlock counter, PhiloxKey key) {
  for (int round = 0; round < kPhiloxRounds; ++round) {
    const auto a = std::uint64_t{kPhiloxMultipliers[0]} * counter[0];
    const auto b = std::uint64_t{kPhiloxMultipliers[1]} * counter[2];
    counter = {
        static_cast<std::uint32_t>(b >> 32) ^ counter[1] ^ key[0], static_cast<std::uint32_t>(b),
        static_cast<std::uint32_t>(a >> 32) ^ counter[3] ^ key[1], static_cast<std::uint32_t>(a)};
    key = {key[0] + kPhiloxWeyl[0], key[1] + kPhiloxWeyl[1]};
  }
  return counter;
}

}  // namespace bimetal

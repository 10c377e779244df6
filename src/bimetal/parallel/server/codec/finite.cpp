#include "bimetal/parallel/server/codec/finite.h"

#include <bit>
#include <cstdint>

namespace bimetal::parallel::server {
namespace {

// What is not finite has every bit of the exponent set: adding the exponent's lowest bit then
// carries into the sign. No branch and no comparison, so that the loop vectorises for any
// processor.
template <typename Bits, Bits kExponent, typename Value>
bool finite_bits(std::span<const Value> values) noexcept {
  constexpr Bits kLowest = kExponent & (~kExponent + 1);
  constexpr Bits kSign = Bits{1} << (8 * sizeof(Bits) - 1);
  Bits seen = 0;
  for (const Value value : values) seen |= (std::bit_cast<Bits>(value) & kExponent) + kLowest;
  return (seen & kSign) == 0;
}

}  // namespace

bool all_finite(std::span<const float> values) noexcept {
  return finite_bits<std::uint32_t, 0x7f800000u>(values);
}

bool all_finite(std::span<const double> values) noexcept {
  return finite_bits<std::uint64_t, 0x7ff0000000000000u>(values);
}

}  // namespace bimetal::parallel::server

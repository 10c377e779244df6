#include "bimetal/comm/reduce/half.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace bimetal::comm {
namespace {

// The value of a binary16 pattern, from its definition.
double value_of(std::uint16_t bits) {
  const int exponent = (bits >> 10) & 31, mantissa = bits & 1023;
  const double sign = bits & 0x8000 ? -1 : 1;
  if (exponent == 0) return sign * std::ldexp(mantissa, -24);
  return sign * std::ldexp(1024 + mantissa, exponent - 25);
}

bool finite(std::uint16_t bits) {
  return (bits & 0x7c00) != 0x7c00;
}

Float16 pattern(std::uint16_t bits) {
  Float16 half;
  half.bits = bits;
  return half;
}

TEST(Float16, EveryFinitePatternHasItsValueAndComesBack) {
  for (unsigned bits = 0; bits < 0x10000; ++bits) {
    const auto half = pattern(static_cast<std::uint16_t>(bits));
    if (!finite(half.bits)) continue;
    const auto wide = static_cast<float>(half);
    ASSERT_EQ(wide, value_of(half.bits)) << bits;
    ASSERT_EQ(std::signbit(wide), (bits & 0x8000) != 0) << bits;
    ASSERT_EQ(Float16(wide).bits, half.bits) << bits;
  }
}

TEST(Float16, RoundsToNearestAndTiesToEven) {
  // Between each two neighbours: just below the middle, the middle, just above.
  for (std::uint16_t low = 0; finite(low + 1); ++low) {
    const auto high = static_cast<std::uint16_t>(low + 1);
    const auto middle = static_cast<float>((value_of(low) + value_of(high)) / 2);
    const auto even = low % 2 == 0 ? low : high;
    ASSERT_EQ(Float16(middle).bits, even) << low;
    ASSERT_EQ(Float16(std::nextafter(middle, 0.0f)).bits, low) << low;
    ASSERT_EQ(Float16(std::nextafter(middle, 1e9f)).bits, high) << low;
    ASSERT_EQ(Float16(-middle).bits, even | 0x8000) << low;
  }
}

TEST(Float16, LargeValuesBecomeInfinite) {
  EXPECT_EQ(Float16(65519.996f).bits, 0x7bff);
  EXPECT_EQ(Float16(65520.0f).bits, 0x7c00);
  EXPECT_EQ(Float16(1e38f).bits, 0x7c00);
  EXPECT_EQ(Float16(-std::numeric_limits<float>::infinity()).bits, 0xfc00);
  EXPECT_TRUE(std::isinf(static_cast<float>(pattern(0x7c00))));
}

TEST(Float16, NotANumberStaysOne) {
  for (std::uint16_t bits = 0x7c01; bits < 0x8000; ++bits) {
    ASSERT_TRUE(std::isnan(static_cast<float>(pattern(bits))));
  }
  const Float16 half(std::numeric_limits<float>::quiet_NaN());
  EXPECT_TRUE(std::isnan(static_cast<float>(half)));
}

TEST(BFloat16, RoundsToNearestAndTiesToEven) {
  for (std::uint32_t low = 0; low < 0x7f7f; ++low) {
    const auto middle = std::bit_cast<float>(low << 16 | 0x8000u);
    ASSERT_EQ(BFloat16(middle).bits, low % 2 == 0 ? low : low + 1);
    ASSERT_EQ(BFloat16(std::nextafter(middle, 0.0f)).bits, low);
    ASSERT_EQ(BFloat16(std::bit_cast<float>(low << 16)).bits, low);
  }
}

TEST(BFloat16, NotANumberStaysOne) {
  // A payload of low bits alone would round to infinity.
  const auto nan = std::bit_cast<float>(0x7f800001u);
  EXPECT_TRUE(std::isnan(static_cast<float>(BFloat16(nan))));
  EXPECT_TRUE(std::isnan(static_cast<float>(BFloat16(-nan))));
}

}  // namespace
}  // namespace bimetal::comm

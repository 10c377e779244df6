#include "bimetal/comm/reduce/reduce_kernels.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <limits>

#include "bimetal/comm/dtype.h"

namespace bimetal::comm {
namespace {

template <typename T>
constexpr DType type_of() {
  if constexpr (std::is_same_v<T, Float16>) {
    return DType::float16;
  } else if constexpr (std::is_same_v<T, BFloat16>) {
    return DType::bfloat16;
  } else {
    return dtype_of<T>;
  }
}

template <typename T>
T combined(T a, T b, ReduceOp op) {
  accumulate(&a, &b, 1, type_of<T>(), op);
  return a;
}

template <typename T>
T quotient(T sum, int n) {
  divide(&sum, 1, type_of<T>(), n);
  return sum;
}

TEST(ReduceKernel, IntegersWrapAround) {
  EXPECT_EQ(combined<std::int8_t>(127, 1, ReduceOp::sum), -128);
  EXPECT_EQ(combined<std::uint8_t>(200, 100, ReduceOp::sum), 44);
  EXPECT_EQ(combined<std::int16_t>(-32768, -1, ReduceOp::product), -32768);
  EXPECT_EQ(combined(std::numeric_limits<std::int32_t>::max(), 1, ReduceOp::sum),
            std::numeric_limits<std::int32_t>::min());
  EXPECT_EQ(combined(std::numeric_limits<std::int64_t>::min(), std::int64_t{-1}, ReduceOp::product),
            std::numeric_limits<std::int64_t>::min());
}

template <typename T>
class NotANumber : public ::testing::Test {};
using FloatTypes = ::testing::Types<float, double, Float16, BFloat16>;
TYPED_TEST_SUITE(NotANumber, FloatTypes);

TYPED_TEST(NotANumber, WinsOnEitherSideOfEveryOperator) {
  const TypeParam nan(std::numeric_limits<float>::quiet_NaN()), one(1.0f);
  for (const auto op : {ReduceOp::sum, ReduceOp::min, ReduceOp::max, ReduceOp::product}) {
    EXPECT_TRUE(std::isnan(static_cast<float>(combined(nan, one, op)))) << to_string(op);
    EXPECT_TRUE(std::isnan(static_cast<float>(combined(one, nan, op)))) << to_string(op);
  }
}

TEST(ReduceKernel, HalvesRoundOncePerOperation) {
  // 2048 + 1 lies between two float16 values and ties to the even one; so does 256 + 1 in bfloat16.
  EXPECT_EQ(static_cast<float>(combined(Float16(2048.0f), Float16(1.0f), ReduceOp::sum)), 2048.0f);
  EXPECT_EQ(static_cast<float>(combined(Float16(2048.0f), Float16(3.0f), ReduceOp::sum)), 2052.0f);
  EXPECT_EQ(static_cast<float>(combined(BFloat16(256.0f), BFloat16(1.0f), ReduceOp::sum)), 256.0f);
  EXPECT_EQ(static_cast<float>(combined(BFloat16(256.0f), BFloat16(3.0f), ReduceOp::sum)), 260.0f);
  // Products that overflow are infinite, not wrapped.
  EXPECT_TRUE(std::isinf(
      static_cast<float>(combined(Float16(60000.0f), Float16(2.0f), ReduceOp::product))));
  EXPECT_EQ(quotient(Float16(1.0f), 3).bits, Float16(1.0f / 3.0f).bits);
}

TEST(ReduceKernel, NothingIsTouchedForNoElements) {
  for (const auto op : {ReduceOp::sum, ReduceOp::min}) {
    accumulate(nullptr, nullptr, 0, DType::float32, op);
    accumulate_right(nullptr, nullptr, 0, DType::int8, op);
  }
  divide(nullptr, 0, DType::float16, 3);
}

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

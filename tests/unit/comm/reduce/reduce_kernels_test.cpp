#include "bimetal/comm/reduce/reduce_kernels.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "bimetal/comm/buffer.h"
#include "bimetal/comm/reduce/half.h"

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

template <typename T>
class ReduceKernels : public ::testing::Test {};
using AllTypes = ::testing::Types<float, double, Float16, BFloat16, std::int8_t, std::int16_t,
                                  std::int32_t, std::int64_t, std::uint8_t>;
TYPED_TEST_SUITE(ReduceKernels, AllTypes);

TYPED_TEST(ReduceKernels, EveryElementIsReduced) {
  // Odd, so that a vectorised loop has a remainder.
  constexpr std::size_t kCount = 77;
  const auto number = [](std::size_t i) { return TypeParam(static_cast<float>(i % 9)); };
  const auto as_float = [](TypeParam value) { return static_cast<float>(value); };
  for (const auto op :
       {ReduceOp::sum, ReduceOp::avg, ReduceOp::min, ReduceOp::max, ReduceOp::product}) {
    std::vector<TypeParam> left(kCount), right(kCount), mirrored(kCount);
    for (std::size_t i = 0; i < kCount; ++i) {
      left[i] = number(i);
      right[i] = mirrored[i] = number(i * i + 1);
    }
    const auto original = left;
    accumulate_right(left.data(), mirrored.data(), kCount, type_of<TypeParam>(), op);
    accumulate(left.data(), right.data(), kCount, type_of<TypeParam>(), op);
    for (std::size_t i = 0; i < kCount; ++i) {
      const float a = as_float(original[i]), b = as_float(right[i]);
      const float expected = op == ReduceOp::product ? a * b
                             : op == ReduceOp::min   ? std::min(a, b)
                             : op == ReduceOp::max   ? std::max(a, b)
                                                     : a + b;
      ASSERT_EQ(as_float(left[i]), expected) << to_string(op) << " at " << i;
      ASSERT_EQ(as_float(mirrored[i]), expected) << to_string(op) << " at " << i;
    }
  }
}

TYPED_TEST(ReduceKernels, DividesByTheGroupsSize) {
  const TypeParam sum(static_cast<float>(12));
  EXPECT_EQ(static_cast<float>(quotient(sum, 4)), 3.0f);
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

TEST(ReduceKernel, SignedIntegersCompareWithTheirSign) {
  EXPECT_EQ(combined<std::int8_t>(-1, 1, ReduceOp::min), -1);
  EXPECT_EQ(combined<std::int8_t>(-1, 1, ReduceOp::max), 1);
  EXPECT_EQ(combined<std::int64_t>(-1, 1, ReduceOp::max), 1);
  EXPECT_EQ(combined<std::uint8_t>(255, 1, ReduceOp::max), 255);
}

TEST(ReduceKernel, IntegerAveragesTruncateTowardsZero) {
  EXPECT_EQ(quotient<std::int32_t>(7, 2), 3);
  EXPECT_EQ(quotient<std::int32_t>(-7, 2), -3);
  EXPECT_EQ(quotient<std::int8_t>(-128, 3), -42);
  EXPECT_EQ(quotient<std::uint8_t>(255, 2), 127);
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

}  // namespace
}  // namespace bimetal::comm

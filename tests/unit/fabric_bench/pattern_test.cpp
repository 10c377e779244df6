#include "bimetal/fabric_bench/pattern.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace bimetal::fabric_bench {
namespace {

using comm::DType;

constexpr DType kTypes[] = {DType::float32,  DType::float64, DType::float16,
                            DType::bfloat16, DType::int8,    DType::int64};

TEST(Pattern, IsFoundAgainFromAnyElement) {
  for (const DType dtype : kTypes) {
    const std::size_t elements = 3 * kPeriod + 5;
    std::vector<std::byte> memory(elements * size_of(dtype));
    fill(memory, dtype, pattern_of(2), 7);
    EXPECT_EQ(difference(memory, dtype, pattern_of(2), 7), "");
    const auto rest = std::span(memory).subspan(kPeriod / 2 * size_of(dtype));
    EXPECT_EQ(difference(rest, dtype, pattern_of(2), 7 + kPeriod / 2), "");
  }
}

TEST(Pattern, DiffersBetweenRanksAndElements) {
  std::vector<std::byte> memory(4 * kPeriod * sizeof(float));
  fill(memory, DType::float32, pattern_of(0));
  EXPECT_NE(difference(memory, DType::float32, pattern_of(1)), "");
  EXPECT_NE(difference(memory, DType::float32, pattern_of(0), 1), "");
}

TEST(Pattern, OneWrongElementIsNamed) {
  std::vector<float> memory(4 * kPeriod);
  fill(std::as_writable_bytes(std::span(memory)), DType::float32, sum_of_patterns(5));
  memory[200] += 1;
  const auto wrong =
      difference(std::as_bytes(std::span(memory)), DType::float32, sum_of_patterns(5));
  EXPECT_EQ(wrong.rfind("element 200 of 244", 0), 0u) << wrong;
}

TEST(Pattern, SumsAreExactInTheSmallestType) {
  for (const double value : sum_of_patterns(40)) EXPECT_LE(value, 127);
}

TEST(Pattern, RelativeErrorIsOfTheWhole) {
  std::vector<float> memory(200);
  const auto bytes = std::as_writable_bytes(std::span(memory));
  fill(bytes, comm::DType::float32, pattern_of(1));
  EXPECT_EQ(relative_error(bytes, comm::DType::float32, pattern_of(1), 1), 0);
  EXPECT_DOUBLE_EQ(relative_error(bytes, comm::DType::float32, pattern_of(1), 0.5), 1);
  std::ranges::fill(memory, 0.0f);
  EXPECT_DOUBLE_EQ(relative_error(bytes, comm::DType::float32, pattern_of(1), 3), 1);
}

}  // namespace
}  // namespace bimetal::fabric_bench

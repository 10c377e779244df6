#include "bimetal/comm/compress/low_rank.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>

namespace bimetal::comm {
namespace {

std::vector<float> random_values(std::size_t count, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> values(count);
  for (float& value : values) value = normal(random);
  return values;
}

double norm(std::span<const float> values) {
  double sum = 0;
  for (const float value : values) sum += double{value} * double{value};
  return std::sqrt(sum);
}

TEST(LowRank, ColumnsBecomeOrthonormal) {
  for (const std::size_t rows : {5, 64, 3001}) {
    const int rank = 4;
    auto p = random_values(rows * rank, 3);
    // Nearly parallel columns, as those of a matrix with one large singular value.
    for (std::size_t i = 0; i < rows; ++i) p[rows + i] = p[i] * 3 + 1e-3f * p[rows + i];
    orthogonalize(p, rows, rank);
    for (int a = 0; a < rank; ++a) {
      for (int b = 0; b <= a; ++b) {
        double product = 0;
        for (std::size_t i = 0; i < rows; ++i)
          product += double{p[a * rows + i]} * double{p[b * rows + i]};
        EXPECT_NEAR(product, a == b ? 1 : 0, 1e-5) << rows << ": " << a << ", " << b;
      }
    }
  }
}

TEST(LowRank, DependentColumnsBecomeZero) {
  std::vector<float> p = {1, 2, 3, /**/ 2, 4, 6, /**/ 0, 0, 0, /**/ 1, 0, 0};
  orthogonalize(p, 3, 4);
  EXPECT_NEAR(norm(std::span(p).first(3)), 1, 1e-6);
  EXPECT_EQ(norm(std::span(p).subspan(3, 6)), 0);
  EXPECT_NEAR(norm(std::span(p).last(3)), 1, 1e-6);
}

TEST(LowRank, WhatIsNotFiniteStaysVisible) {
  for (const float odd :
       {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    std::vector<float> p = {1, odd, 3};
    orthogonalize(p, 3, 1);
    for (const float value : p) EXPECT_TRUE(std::isnan(value));
  }
}

TEST(LowRank, ABasisIsNeverWithoutDirection) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  std::vector<float> q = {3, 4, /**/ 0, 0, /**/ nan, 1, /**/ 0, 0};
  make_basis(q, 2, 4, 9);
  EXPECT_EQ(q[0], 0.6f);
  EXPECT_EQ(q[1], 0.8f);
  for (int column = 1; column < 4; ++column)
    EXPECT_GT(norm(std::span(q).subspan(2 * column, 2)), 0);
  EXPECT_NE(q[2], q[6]);  // each zero column gets a direction of its own
  std::vector<float> again = {3, 4, /**/ 0, 0, /**/ nan, 1, /**/ 0, 0};
  make_basis(again, 2, 4, 9);
  EXPECT_EQ(q, again);
}

}  // namespace
}  // namespace bimetal::comm

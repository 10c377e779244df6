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

constexpr Matrix kShapes[] = {{1, 1}, {7, 5}, {64, 64}, {33, 1200}, {300, 2049}};

TEST(LowRank, ProductsMatchTheirDefinition) {
  for (const Matrix shape : kShapes) {
    for (const int rank : {1, 2, 4, 7}) {
      const auto m = random_values(shape.count(), 1);
      const auto q = random_values(shape.cols * rank, 2);
      std::vector<float> p(shape.rows * rank), qt(shape.cols * rank);
      multiply(m, shape, rank, q, p);
      multiply_transposed(m, shape, rank, p, qt);
      for (int c = 0; c < rank; ++c) {
        for (std::size_t i = 0; i < shape.rows; i += 3) {
          double sum = 0;
          for (std::size_t j = 0; j < shape.cols; ++j) {
            sum += double{m[i * shape.cols + j]} * double{q[c * shape.cols + j]};
          }
          ASSERT_NEAR(p[c * shape.rows + i], sum, 1e-4 * std::sqrt(shape.cols) * 4);
        }
        for (std::size_t j = 0; j < shape.cols; j += 7) {
          double sum = 0;
          for (std::size_t i = 0; i < shape.rows; ++i) {
            sum += double{m[i * shape.cols + j]} * double{p[c * shape.rows + i]};
          }
          ASSERT_NEAR(qt[c * shape.cols + j], sum, 1e-5 * norm(p) * std::sqrt(shape.rows) + 1e-5);
        }
      }
    }
  }
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

// Applied again and again to one matrix, a step of power iteration comes close to the best
// approximation of that rank; the first one loses no more than the whole matrix.
TEST(LowRank, PowerIterationFindsTheLargestPart) {
  const Matrix shape{60, 90};
  const int rank = 2;
  std::vector<float> m(shape.count());
  const auto u = random_values(shape.rows * rank, 5), v = random_values(shape.cols * rank, 6);
  reconstruct(shape, rank, u, v, {}, m, {});
  const auto noise = random_values(shape.count(), 7);
  for (std::size_t i = 0; i < m.size(); ++i) m[i] += 0.01f * noise[i];

  std::vector<float> q(shape.cols * rank), p(shape.rows * rank), out(shape.count());
  make_basis(q, shape.cols, rank, 0);
  double lost = 0;
  for (int step = 0; step < 5; ++step) {
    multiply(m, shape, rank, q, p);
    orthogonalize(p, shape.rows, rank);
    multiply_transposed(m, shape, rank, p, q);
    auto residual = m;
    reconstruct(shape, rank, p, q, q, out, residual);
    for (std::size_t i = 0; i < m.size(); ++i) ASSERT_NEAR(out[i] + residual[i], m[i], 1e-4);
    lost = norm(residual) / norm(m);
    ASSERT_LE(lost, 1.0);
    make_basis(q, shape.cols, rank, 0);
  }
  EXPECT_LT(lost, 0.02);
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

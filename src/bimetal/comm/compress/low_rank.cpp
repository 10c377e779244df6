#include "bimetal/comm/compress/low_rank.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace bimetal::comm {
namespace {

constexpr std::size_t kSums = 16;

// The share of a column's length that must remain. With less, the column counts as a combination of
// others.
constexpr double kDependent = 1e-6;

// Below this length a column is as good as zero, and its inverse no float any more.
constexpr double kShortest = 1e-30;

// Columns of a row that are treated while they are in the first-level cache.
constexpr std::size_t kStrip = 1024;

// Summed in lanes: the same order of additions on every processor, and one that vectorises.
template <int Columns>
void dot(const float* __restrict row, const float* __restrict q, std::size_t count,
         std::size_t stride, float* __restrict sums) {
  float lanes[Columns][kSums] = {};
  std::size_t j = 0;
  for (; j + kSums <= count; j += kSums) {
    for (int c = 0; c < Columns; ++c) {
      for (std::size_t lane = 0; lane < kSums; ++lane) {
        lanes[c][lane] += row[j + lane] * q[c * stride + j + lane];
      }
    }
  }
  for (int c = 0; c < Columns; ++c) {
    float sum = 0;
    for (const float lane : lanes[c]) sum += lane;
    for (std::size_t rest = j; rest < count; ++rest) sum += row[rest] * q[c * stride + rest];
    sums[c] += sum;
  }
}

// q[c] += p[c] × row for each column.
template <int Columns>
void add_scaled(const float* __restrict row, const float* p, std::size_t count, std::size_t stride,
                float* __restrict q) {
  for (int c = 0; c < Columns; ++c) {
    float* __restrict const target = q + c * stride;
    for (std::size_t j = 0; j < count; ++j) target[j] += p[c] * row[j];
  }
}

// to += or = the combination of q's columns.
template <int Columns>
void combine(const float* p, const float* __restrict q, std::size_t count, std::size_t stride,
             float sign, bool add, float* __restrict to) {
  for (std::size_t j = 0; j < count; ++j) {
    float sum = 0;
    for (int c = 0; c < Columns; ++c) sum += p[c] * q[c * stride + j];
    to[j] = (add ? to[j] : 0.0f) + sign * sum;
  }
}

// Calls `function.operator()<Columns>(first)` for columns four at a time, then one by one.
template <typename Function>
void for_columns(int rank, Function function) {
  int column = 0;
  for (; column + 4 <= rank; column += 4) function.template operator()<4>(column);
  for (; column < rank; ++column) function.template operator()<1>(column);
}

// The entries of one row of P, column by column.
template <int Columns>
struct RowOf {
  float entries[Columns];
  RowOf(const float* p, std::size_t rows, std::size_t row) {
    for (int c = 0; c < Columns; ++c) entries[c] = p[c * rows + row];
  }
};

// SplitMix64 (Steele, Lea and Flood, 2014).
std::uint64_t mixed(std::uint64_t number) {
  number = (number ^ (number >> 30)) * 0xbf58476d1ce4e5b9u;
  number = (number ^ (number >> 27)) * 0x94d049bb133111ebu;
  return number ^ (number >> 31);
}

// Numbers from -1 to 1 that depend on the seed alone.
void fill_random(std::span<float> values, std::uint64_t seed) {
  std::uint64_t state = mixed(seed);
  for (float& value : values) {
    state += 0x9e3779b97f4a7c15u;
    const auto bits = static_cast<std::int32_t>(mixed(state) >> 40);
    value = static_cast<float>(bits - (1 << 23)) * 0x1p-23f;
  }
}

double inner_product(const float* a, const float* b, std::size_t count) {
  double lanes[kSums] = {};
  std::size_t i = 0;
  for (; i + kSums <= count; i += kSums) {
    for (std::size_t lane = 0; lane < kSums; ++lane) {
      lanes[lane] += static_cast<double>(a[i + lane]) * static_cast<double>(b[i + lane]);
    }
  }
  double sum = 0;
  for (const double lane : lanes) sum += lane;
  for (; i < count; ++i) sum += static_cast<double>(a[i]) * static_cast<double>(b[i]);
  return sum;
}

void remove_direction(float* column, const float* direction, std::size_t rows) {
  const auto share = static_cast<float>(inner_product(column, direction, rows));
  for (std::size_t i = 0; i < rows; ++i) column[i] -= share * direction[i];
}

}  // namespace

int columns_that_pay(Matrix shape, int rank) {
  const auto columns = std::min({static_cast<std::size_t>(rank), shape.rows, shape.cols});
  return (shape.rows + shape.cols) * columns < shape.count() ? static_cast<int>(columns) : 0;
}

void multiply(std::span<const float> m, Matrix shape, int rank, std::span<const float> q,
              std::span<float> p) {
  std::ranges::fill(p, 0.0f);
  for (std::size_t first = 0; first < shape.cols; first += kStrip) {
    const std::size_t count = std::min(kStrip, shape.cols - first);
    for (std::size_t i = 0; i < shape.rows; ++i) {
      const float* const row = m.data() + i * shape.cols + first;
      for_columns(rank, [&]<int Columns>(int column) {
        float sums[Columns] = {};
        dot<Columns>(row, q.data() + column * shape.cols + first, count, shape.cols, sums);
        for (int c = 0; c < Columns; ++c) p[(column + c) * shape.rows + i] += sums[c];
      });
    }
  }
}

void multiply_transposed(std::span<const float> m, Matrix shape, int rank, std::span<const float> p,
                         std::span<float> q) {
  std::ranges::fill(q, 0.0f);
  for (std::size_t first = 0; first < shape.cols; first += kStrip) {
    const std::size_t count = std::min(kStrip, shape.cols - first);
    for (std::size_t i = 0; i < shape.rows; ++i) {
      const float* const row = m.data() + i * shape.cols + first;
      for_columns(rank, [&]<int Columns>(int column) {
        const RowOf<Columns> of(p.data() + column * shape.rows, shape.rows, i);
        add_scaled<Columns>(row, of.entries, count, shape.cols,
                            q.data() + column * shape.cols + first);
      });
    }
  }
}

void reconstruct(Matrix shape, int rank, std::span<const float> p, std::span<const float> q,
                 std::span<const float> own_q, std::span<float> out, std::span<float> residual) {
  for (std::size_t first = 0; first < shape.cols; first += kStrip) {
    const std::size_t count = std::min(kStrip, shape.cols - first);
    for (std::size_t i = 0; i < shape.rows; ++i) {
      const std::size_t at = i * shape.cols + first;
      for_columns(rank, [&]<int Columns>(int column) {
        const RowOf<Columns> of(p.data() + column * shape.rows, shape.rows, i);
        const std::size_t from = column * shape.cols + first;
        combine<Columns>(of.entries, q.data() + from, count, shape.cols, 1.0f, column > 0,
                         out.data() + at);
        if (residual.empty()) return;
        combine<Columns>(of.entries, own_q.data() + from, count, shape.cols, -1.0f, true,
                         residual.data() + at);
      });
    }
  }
}

void orthogonalize(std::span<float> p, std::size_t rows, int rank) {
  for (int column = 0; column < rank; ++column) {
    float* const own = p.data() + column * rows;
    const double before = std::sqrt(inner_product(own, own, rows));
    for (int pass = 0; pass < 2; ++pass) {
      for (int other = 0; other < column; ++other) {
        remove_direction(own, p.data() + other * rows, rows);
      }
    }
    const double length = std::sqrt(inner_product(own, own, rows));
    if (!std::isfinite(before)) {
      std::fill_n(own, rows, std::numeric_limits<float>::quiet_NaN());
    } else if (length <= std::max(kDependent * before, kShortest)) {
      std::fill_n(own, rows, 0.0f);
    } else {
      const auto factor = static_cast<float>(1.0 / length);
      for (std::size_t i = 0; i < rows; ++i) own[i] *= factor;
    }
  }
}

void make_basis(std::span<float> q, std::size_t cols, int rank, std::uint64_t seed) {
  for (int column = 0; column < rank; ++column) {
    const auto own = q.subspan(column * cols, cols);
    const double length = std::sqrt(inner_product(own.data(), own.data(), cols));
    if (length > kShortest && std::isfinite(length)) {
      const auto factor = static_cast<float>(1.0 / length);
      for (float& value : own) value *= factor;
    } else {
      fill_random(own, seed + static_cast<std::uint64_t>(column));
    }
  }
}

}  // namespace bimetal::comm

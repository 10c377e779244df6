#pragma once
// The arithmetic of PowerSGD (Vogels, Karimireddy and Jaggi, "PowerSGD: Practical Low-Rank Gradient
// Compression for Distributed Optimization", NeurIPS 2019, Algorithm 1) on row-major matrices. Pure
// functions; the same bits on every processor.
//
// M is rows × cols. P (rows × rank) and Q (cols × rank) are stored column by column: element i of
// column c is at c × rows + i, or c × cols + i.

#include <cstddef>
#include <cstdint>
#include <span>

#include "bimetal/comm/compress/compression.h"

namespace bimetal::comm {

/// Columns that the factors of a matrix have: `rank`, no more than its smaller side, and 0 where
/// they would be no shorter than the matrix itself.
int columns_that_pay(Matrix shape, int rank);

/// P = M Q.
void multiply(std::span<const float> m, Matrix shape, int rank, std::span<const float> q,
              std::span<float> p);

/// Q = Mᵀ P.
void multiply_transposed(std::span<const float> m, Matrix shape, int rank, std::span<const float> p,
                         std::span<float> q);

/// out = P Qᵀ, and where `residual` is not empty, residual = residual - P ownQᵀ.
void reconstruct(Matrix shape, int rank, std::span<const float> p, std::span<const float> q,
                 std::span<const float> own_q, std::span<float> out, std::span<float> residual);

/// Makes the columns orthonormal (Gram-Schmidt, twice). One that depends on those before it, up to
/// rounding, becomes zero. Anything that is not finite makes its column NaN.
void orthogonalize(std::span<float> p, std::size_t rows, int rank);

/// Makes Q the start of the next call: its columns get length 1, and those that are zero or not
/// finite get a new direction, which depends on the seed alone.
void make_basis(std::span<float> q, std::size_t cols, int rank, std::uint64_t seed);

}  // namespace bimetal::comm

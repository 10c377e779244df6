#pragma once
// The arithmetic of reductions on host memory.

#include <cstddef>

#include "bimetal/comm/dtype.h"

namespace bimetal::comm {

/// left[i] = left[i] op right[i]. avg adds, as sum does: see divide(). float16 and bfloat16 are
/// computed in float32 and rounded once; integers wrap around; NaN wins in min and max.
/// The same operands in the same order give the same bits on every rank.
void accumulate(void* left, const void* right, std::size_t count, DType dtype, ReduceOp op);

/// data[i] = left[i] op data[i]: the same with the result on the other side.
void accumulate_right(const void* left, void* data, std::size_t count, DType dtype, ReduceOp op);

/// data[i] /= divisor, in the type's arithmetic: integers truncate towards zero.
void divide(void* data, std::size_t count, DType dtype, int divisor);

}  // namespace bimetal::comm

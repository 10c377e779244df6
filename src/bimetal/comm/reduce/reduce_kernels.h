#pragma once
// The arithmetic of reductions on host memory.

#include <cstddef>
#include <span>
#include <vector>

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

// One reduction over several ranks' data at once, in memory that all of them can read.

/// targets[t][i] = sources[0][i] op sources[1][i] op …, for every target; avg divides by the number
/// of sources. Taken in the order of the sources, so that the bits do not depend on who computes
/// them. float16 and bfloat16 are accumulated in float32 over all sources and rounded once.
/// Otherwise the arithmetic is that of reduce_kernels.h. A target may be one of the sources; no two
/// may overlap otherwise. At least one source.
void reduce_across(std::span<const std::byte* const> sources, std::span<std::byte* const> targets,
                   std::size_t count, DType dtype, ReduceOp op);

/// What this processor can run, from the plainest to the one that reduce_across() takes: the same
/// loops for different instruction sets, with the same results. For tests and measurements.
using ReduceAcross = decltype(&reduce_across);
std::vector<ReduceAcross> reduce_across_variants();

}  // namespace bimetal::comm

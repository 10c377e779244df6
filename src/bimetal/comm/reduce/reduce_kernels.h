#pragma once
// The arithmetic of reductions on host memory.
//
// The operators of reductions on single elements, and how to find them by name. For the files that
// make loops of them.

#include <bit>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <span>
#include <type_traits>
#include <vector>

#include "bimetal/base/error.h"
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

/// The variants that this processor can run, from the plainest to the one that reduce_across()
/// uses: the same loops for different instruction sets, with the same results. For tests and
/// measurements.
using ReduceAcross = decltype(&reduce_across);
std::vector<ReduceAcross> reduce_across_variants();

// float16 and bfloat16 as 16-bit patterns, converted through float32. Branch-free, so that loops
// over them vectorise on any machine; rounding is to nearest, ties to even.

/// `yes` or `no`, without a branch: compilers do not vectorise one with float arithmetic in it.
inline std::uint32_t choose(bool condition, std::uint32_t yes, std::uint32_t no) {
  return no ^ ((yes ^ no) & (0u - static_cast<std::uint32_t>(condition)));
}

/// IEEE 754 binary16: 1 sign, 5 exponent, 10 mantissa bits.
struct Float16 {
  std::uint16_t bits = 0;

  Float16() = default;
  explicit Float16(float value) : bits(round(value)) {}

  explicit operator float() const {
    const std::uint32_t sign = (bits & 0x8000u) << 16;
    const std::uint32_t rest = bits & 0x7fffu;
    // A subnormal is its mantissa in units of 2^-24; everything else keeps its mantissa and gets
    // the wider exponent's bias (127 - 15), infinities and NaN the wider all-ones exponent.
    const auto subnormal = static_cast<float>(static_cast<std::int32_t>(rest)) * 0x1p-24f;
    const std::uint32_t rebias = choose(rest >= 0x7c00u, (255u - 31u) << 23, (127u - 15u) << 23);
    const std::uint32_t wide =
        choose(rest < 0x0400u, std::bit_cast<std::uint32_t>(subnormal), (rest << 13) + rebias);
    return std::bit_cast<float>(wide | sign);
  }

 private:
  static std::uint16_t round(float value) {
    const auto all = std::bit_cast<std::uint32_t>(value);
    const std::uint32_t sign = (all >> 16) & 0x8000u;
    const std::uint32_t rest = all & 0x7fffffffu;
    // Adding half a unit (less one, plus the lowest kept bit) carries exactly when nearest-even
    // rounds up; the carry may run into the exponent, up to infinity, as it should.
    const std::uint32_t normal =
        ((rest + 0xfffu + ((rest >> 13) & 1u)) >> 13) - ((127u - 15u) << 10);
    // One half has its last bit at 2^-24, so the processor's own addition rounds a subnormal.
    const float shifted = std::bit_cast<float>(rest) + 0.5f;
    const std::uint32_t subnormal = std::bit_cast<std::uint32_t>(shifted) - 0x3f000000u;
    const std::uint32_t special = choose(rest > 0x7f800000u, 0x7e00u, 0x7c00u);
    const std::uint32_t finite = choose(rest < 0x38800000u, subnormal, normal);
    return static_cast<std::uint16_t>(choose(rest >= 0x47800000u, special, finite) | sign);
  }
};

/// The upper half of a float32: 1 sign, 8 exponent, 7 mantissa bits.
struct BFloat16 {
  std::uint16_t bits = 0;

  BFloat16() = default;
  explicit BFloat16(float value) : bits(round(value)) {}

  explicit operator float() const {
    return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16);
  }

 private:
  static std::uint16_t round(float value) {
    const auto all = std::bit_cast<std::uint32_t>(value);
    const std::uint32_t nearest = (all + 0x7fffu + ((all >> 16) & 1u)) >> 16;
    const std::uint32_t quiet_nan = (all >> 16) | 0x40u;  // rounding could carry a NaN to infinity
    return static_cast<std::uint16_t>(
        choose((all & 0x7fffffffu) > 0x7f800000u, quiet_nan, nearest));
  }
};

// The memory of one rank that a collective reads and writes.

/// Where the operation works in place (all_reduce, reduce, broadcast) both are the same memory.
/// A side that a rank does not use, such as gather's output away from the root, may be anything.
struct Operands {
  std::span<const std::byte> input;
  std::span<std::byte> output;
};

template <typename T>
concept Half = std::same_as<T, Float16> || std::same_as<T, BFloat16>;

// Integers are added and multiplied in unsigned types at least as wide as int, in which overflow
// is defined to wrap.
template <typename T>
struct Wrapping {
  using type = T;
};
template <std::integral T>
struct Wrapping<T> {
  using type = std::conditional_t<(sizeof(T) > 4), std::uint64_t, std::uint32_t>;
};
template <typename T>
using wrapping_t = typename Wrapping<T>::type;

struct Sum {
  template <typename T>
  static T apply(T a, T b) {
    return static_cast<T>(static_cast<wrapping_t<T>>(a) + static_cast<wrapping_t<T>>(b));
  }
};

struct Product {
  template <typename T>
  static T apply(T a, T b) {
    return static_cast<T>(static_cast<wrapping_t<T>>(a) * static_cast<wrapping_t<T>>(b));
  }
};

struct Min {
  template <typename T>
  static T apply(T a, T b) {
    return ((a < b) | (a != a)) ? a : b;  // a NaN in b makes both tests false: b is taken
  }
};

struct Max {
  template <typename T>
  static T apply(T a, T b) {
    return ((a > b) | (a != a)) ? a : b;
  }
};

// Calls `function` with a value of the C++ type that stands for `dtype`.
template <typename Function>
void with_type(DType dtype, Function function) {
  switch (dtype) {
    case DType::float32: return function(float{});
    case DType::float64: return function(double{});
    case DType::float16: return function(Float16{});
    case DType::bfloat16: return function(BFloat16{});
    case DType::int8: return function(std::int8_t{});
    case DType::int16: return function(std::int16_t{});
    case DType::int32: return function(std::int32_t{});
    case DType::int64: return function(std::int64_t{});
    case DType::uint8: return function(std::uint8_t{});
  }
  throw Error(ErrorCode::Internal, "an unknown element type");
}

// Calls `function` with the operator that stands for `op`.
template <typename Function>
void with_operator(ReduceOp op, Function function) {
  switch (op) {
    case ReduceOp::sum:
    case ReduceOp::avg: return function(Sum{});
    case ReduceOp::product: return function(Product{});
    case ReduceOp::min: return function(Min{});
    case ReduceOp::max: return function(Max{});
  }
  throw Error(ErrorCode::Internal, "reduction by an unknown operator");
}

}  // namespace bimetal::comm

#pragma once
// The operators of reductions on single elements, and how to find them by name. For the files that
// make loops of them.

#include <concepts>
#include <cstdint>
#include <type_traits>

#include "bimetal/base/error.h"
#include "bimetal/comm/dtype.h"
#include "bimetal/comm/reduce/half.h"

namespace bimetal::comm {

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

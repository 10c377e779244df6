#include "bimetal/comm/reduce_kernels.h"

#include <concepts>
#include <cstdint>
#include <type_traits>

#include "bimetal/base/error.h"
#include "bimetal/comm/half.h"

namespace bimetal::comm {
namespace {

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
    return (a < b) | (a != a) ? a : b;  // a NaN in b makes both tests false: b is taken
  }
};

struct Max {
  template <typename T>
  static T apply(T a, T b) {
    return (a > b) | (a != a) ? a : b;
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
  throw Error(ErrorCode::Internal, "reduction of an unknown element type");
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

// target = Op(a, b). Halves are taken apart into plain numbers, which vectorise.
template <typename Op, typename T>
void combine(T& target, const T& a, const T& b) {
  if constexpr (Half<T>) {
    target.bits = T(Op::apply(static_cast<float>(a), static_cast<float>(b))).bits;
  } else {
    target = Op::apply(a, b);
  }
}

// Told that the operands do not overlap, so that each instance is one vectorised loop.
template <typename Op, typename T>
void combine_into_left(T* __restrict left, const T* __restrict right, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) combine<Op>(left[i], left[i], right[i]);
}

template <typename Op, typename T>
void combine_into_right(const T* __restrict left, T* __restrict right, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) combine<Op>(right[i], left[i], right[i]);
}

template <typename T>
void divide_all(T* data, std::size_t count, int divisor) {
  for (std::size_t i = 0; i < count; ++i) {
    if constexpr (std::integral<T>) {
      data[i] = static_cast<T>(static_cast<std::int64_t>(data[i]) / divisor);
    } else if constexpr (Half<T>) {
      data[i].bits = T(static_cast<float>(data[i]) / static_cast<float>(divisor)).bits;
    } else {
      data[i] /= static_cast<T>(divisor);
    }
  }
}

}  // namespace

void accumulate(void* left, const void* right, std::size_t count, DType dtype, ReduceOp op) {
  with_operator(op, [&](auto chosen) {
    with_type(dtype, [&]<typename T>(T) {
      combine_into_left<decltype(chosen)>(static_cast<T*>(left), static_cast<const T*>(right),
                                          count);
    });
  });
}

void accumulate_right(const void* left, void* data, std::size_t count, DType dtype, ReduceOp op) {
  with_operator(op, [&](auto chosen) {
    with_type(dtype, [&]<typename T>(T) {
      combine_into_right<decltype(chosen)>(static_cast<const T*>(left), static_cast<T*>(data),
                                           count);
    });
  });
}

void divide(void* data, std::size_t count, DType dtype, int divisor) {
  with_type(dtype, [&]<typename T>(T) { divide_all(static_cast<T*>(data), count, divisor); });
}

}  // namespace bimetal::comm

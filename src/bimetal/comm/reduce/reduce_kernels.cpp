#include "bimetal/comm/reduce/reduce_kernels.h"

#include <concepts>
#include <cstdint>

#include "bimetal/comm/reduce/reduce_operators.h"

namespace bimetal::comm {
namespace {

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

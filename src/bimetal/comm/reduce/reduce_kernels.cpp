#include "bimetal/comm/reduce/reduce_kernels.h"

#include <algorithm>
#include <concepts>
#include <cstdint>
#include <cstring>

// Where the compiler can compile for other processors than the oldest, and its library can tell
// which one it runs on (not every one for Windows can).
#if defined(__x86_64__) && defined(__GNUC__) && !defined(_WIN32)
#define BIMETAL_X86_VARIANTS 1
#else
#define BIMETAL_X86_VARIANTS 0
#endif

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

namespace {

// Elements that are brought through all sources before the next: their running result stays in the
// first-level cache.
constexpr std::size_t kBlock = 1024;

// The type in which elements are accumulated.
template <typename T>
using accumulator_t = std::conditional_t<Half<T>, float, T>;

template <typename Op, typename T, typename A>
void combine_two(A* __restrict result, const T* a, const T* b, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) {
    result[i] = Op::apply(static_cast<A>(a[i]), static_cast<A>(b[i]));
  }
}

template <typename Op, typename T, typename A>
void combine_more(A* __restrict result, const T* more, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) result[i] = Op::apply(result[i], static_cast<A>(more[i]));
}

template <typename T, typename A>
void widen(A* __restrict result, const T* from, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) result[i] = static_cast<A>(from[i]);
}

template <typename A>
void divide_by(A* __restrict result, std::size_t count, std::size_t divisor) {
  for (std::size_t i = 0; i < count; ++i) {
    if constexpr (std::integral<A>) {
      result[i] =
          static_cast<A>(static_cast<std::int64_t>(result[i]) / static_cast<std::int64_t>(divisor));
    } else {
      result[i] /= static_cast<A>(divisor);
    }
  }
}

template <typename T>
void round_to(std::uint16_t* __restrict target, const float* __restrict from, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) target[i] = T(from[i]).bits;
}

template <typename T, typename A>
void store(std::byte* target, const A* result, std::size_t count) {
  if constexpr (Half<T>) {
    round_to<T>(reinterpret_cast<std::uint16_t*>(target), result, count);
  } else {
    std::memcpy(target, result, count * sizeof(T));
  }
}

template <typename Op, typename T>
void reduce_blocks(std::span<const std::byte* const> sources, std::span<std::byte* const> targets,
                   std::size_t count, bool average) {
  using A = accumulator_t<T>;
  alignas(64) A result[kBlock];
  for (std::size_t first = 0; first < count; first += kBlock) {
    const std::size_t n = std::min(kBlock, count - first);
    const auto source = [&](std::size_t s) {
      return reinterpret_cast<const T*>(sources[s]) + first;
    };
    if (sources.size() == 1) {
      widen(result, source(0), n);
    } else {
      combine_two<Op>(result, source(0), source(1), n);
    }
    for (std::size_t s = 2; s < sources.size(); ++s) combine_more<Op>(result, source(s), n);
    if (average) divide_by(result, n, sources.size());
    for (std::byte* target : targets) store<T>(target + first * sizeof(T), result, n);
  }
}

inline void reduce_all(std::span<const std::byte* const> sources,
                       std::span<std::byte* const> targets, std::size_t count, DType dtype,
                       ReduceOp op) {
  with_operator(op, [&](auto chosen) {
    with_type(dtype, [&]<typename T>(T) {
      reduce_blocks<decltype(chosen), T>(sources, targets, count, op == ReduceOp::avg);
    });
  });
}

// The same loops, compiled once for each instruction set: flattening draws them into functions that
// may use it. No set brings fused multiplication in, so that all give the same bits.
void reduce_plainly(std::span<const std::byte* const> sources, std::span<std::byte* const> targets,
                    std::size_t count, DType dtype, ReduceOp op) {
  reduce_all(sources, targets, count, dtype, op);
}

#if BIMETAL_X86_VARIANTS
[[gnu::target("avx2"), gnu::flatten]] void reduce_with_avx2(
    std::span<const std::byte* const> sources, std::span<std::byte* const> targets,
    std::size_t count, DType dtype, ReduceOp op) {
  reduce_all(sources, targets, count, dtype, op);
}

[[gnu::target("avx512f,avx512bw,avx512dq,avx512vl"), gnu::flatten]] void reduce_with_avx512(
    std::span<const std::byte* const> sources, std::span<std::byte* const> targets,
    std::size_t count, DType dtype, ReduceOp op) {
  reduce_all(sources, targets, count, dtype, op);
}
#endif

}  // namespace

std::vector<ReduceAcross> reduce_across_variants() {
  std::vector<ReduceAcross> variants{reduce_plainly};
#if BIMETAL_X86_VARIANTS
  __builtin_cpu_init();
  if (__builtin_cpu_supports("avx2")) variants.push_back(reduce_with_avx2);
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl")) {
    variants.push_back(reduce_with_avx512);
  }
#endif
  return variants;
}

void reduce_across(std::span<const std::byte* const> sources, std::span<std::byte* const> targets,
                   std::size_t count, DType dtype, ReduceOp op) {
  static const ReduceAcross best = reduce_across_variants().back();
  best(sources, targets, count, dtype, op);
}

}  // namespace bimetal::comm

#pragma once
// Typed views of memory that collectives read and write.

#include <cstddef>
#include <cstdint>
#include <ranges>
#include <type_traits>

#include "bimetal/comm/dtype.h"

namespace bimetal::comm {

/// `count` elements of `dtype` at `data`, aligned for the type. A view: it owns nothing.
struct Buffer {
  void* data = nullptr;
  std::size_t count = 0;
  DType dtype = DType::float32;

  std::size_t bytes() const noexcept { return count * size_of(dtype); }
};

/// The same for memory that is only read.
struct ConstBuffer {
  const void* data = nullptr;
  std::size_t count = 0;
  DType dtype = DType::float32;

  ConstBuffer() = default;
  ConstBuffer(const void* d, std::size_t c, DType t) : data(d), count(c), dtype(t) {}
  ConstBuffer(const Buffer& b) : data(b.data), count(b.count), dtype(b.dtype) {}  // NOLINT
  std::size_t bytes() const noexcept { return count * size_of(dtype); }
};

/// The fabric's name of a C++ type. float16 and bfloat16 have none: name the DType in a Buffer.
template <typename T>
inline constexpr DType dtype_of = DType{};
template <>
inline constexpr DType dtype_of<float> = DType::float32;
template <>
inline constexpr DType dtype_of<double> = DType::float64;
template <>
inline constexpr DType dtype_of<std::int8_t> = DType::int8;
template <>
inline constexpr DType dtype_of<std::int16_t> = DType::int16;
template <>
inline constexpr DType dtype_of<std::int32_t> = DType::int32;
template <>
inline constexpr DType dtype_of<std::int64_t> = DType::int64;
template <>
inline constexpr DType dtype_of<std::uint8_t> = DType::uint8;

template <typename T>
concept Element = dtype_of<std::remove_cv_t<T>>
!= DType{};

/// A view of a vector, span or array: Buffer, or ConstBuffer where its elements are constant.
/// Refuses a temporary that would be gone before the operation ends.
template <std::ranges::contiguous_range Range>
requires std::ranges::borrowed_range<Range> &&
    Element<std::remove_reference_t<std::ranges::range_reference_t<Range>>>
auto buffer(Range&& range) {
  using T = std::remove_reference_t<std::ranges::range_reference_t<Range>>;
  using View = std::conditional_t<std::is_const_v<T>, ConstBuffer, Buffer>;
  return View{std::ranges::data(range), std::ranges::size(range), dtype_of<std::remove_cv_t<T>>};
}

}  // namespace bimetal::comm

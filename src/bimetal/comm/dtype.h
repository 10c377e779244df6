#pragma once
// Element types and reductions that the fabric knows. The numeric values are part of the wire
// format (docs/protocol.md) and never change.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <ranges>
#include <span>
#include <string_view>
#include <type_traits>
#include <vector>

namespace bimetal::comm {

/// Types of elements. Numbers on the wire.
enum class DType : std::uint8_t {
  /// IEEE 754 binary16; sums are rounded once per addition from float32.
  /// Upper half of a float32.
  float32 = 1,
  float64 = 2,
  float16 = 3,
  bfloat16 = 4,
  int8 = 5,
  int16 = 6,
  int32 = 7,
  int64 = 8,
  uint8 = 9,
};

/// How the ranks' elements are combined. Numbers on the wire.
enum class ReduceOp : std::uint8_t {
  /// Sum divided by the group's size; integers truncate towards zero.
  /// NaN wins, as in torch.
  sum = 1,
  avg = 2,
  min = 3,
  max = 4,
  product = 5,
};

/// Kinds of collective calls. Numbers on the wire.
enum class Operation : std::uint8_t {
  /// Each rank's length is unknown to the others.
  all_reduce = 1,
  broadcast = 2,
  reduce = 3,
  all_gather = 4,
  reduce_scatter = 5,
  scatter = 6,
  gather = 7,
  all_to_all = 8,
  send_recv = 9,
  barrier = 10,
  all_gather_bytes = 11,
};

/// Bytes per element; 0 for a value that is none of the above.
std::size_t size_of(DType dtype) noexcept;
std::string_view to_string(DType dtype) noexcept;          ///< "float32"
std::string_view to_string(ReduceOp op) noexcept;          ///< "sum"
std::string_view to_string(Operation operation) noexcept;  ///< "all_reduce"

// Typed views of memory that collectives read and write.

/// `count` elements of `dtype` at `data`, aligned for the type. A view: it owns nothing.
struct Buffer {
  void* data = nullptr;          ///< the first element
  std::size_t count = 0;         ///< elements
  DType dtype = DType::float32;  ///< of each

  std::size_t bytes() const noexcept { return count * size_of(dtype); }  ///< of all of them
};

/// The same for memory that is only read.
struct ConstBuffer {
  const void* data = nullptr;    ///< the first element
  std::size_t count = 0;         ///< elements
  DType dtype = DType::float32;  ///< of each

  ConstBuffer() = default;
  /// A buffer of `c` elements.
  ConstBuffer(const void* d, std::size_t c, DType t) : data(d), count(c), dtype(t) {}
  /// A buffer that may be written may be read.
  ConstBuffer(const Buffer& b) : data(b.data), count(b.count), dtype(b.dtype) {}  // NOLINT
  std::size_t bytes() const noexcept { return count * size_of(dtype); }  ///< of all of them
};

/// The fabric's name of a C++ type. float16 and bfloat16 have none: name the DType in a Buffer.
template <typename T>
inline constexpr DType dtype_of = DType{};
/// 32 bits.
template <>
inline constexpr DType dtype_of<float> = DType::float32;
/// 64 bits.
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

// The result of a gather in which ranks give different numbers of bytes, not known beforehand.

/// Empty until the operation is done.
struct Gathered {
  std::vector<std::span<const std::byte>> parts;  ///< rank by rank, in `memory`
  std::unique_ptr<std::byte[]> memory;            ///< of all parts
};

}  // namespace bimetal::comm

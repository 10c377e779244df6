#pragma once
// Element types and reductions that the fabric knows. The numeric values are part of the wire
// format (docs/protocol.md) and never change.

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace bimetal::comm {

enum class DType : std::uint8_t {
  float32 = 1,
  float64 = 2,
  float16 = 3,   ///< IEEE 754 binary16; sums are rounded once per addition from float32
  bfloat16 = 4,  ///< upper half of a float32
  int8 = 5,
  int16 = 6,
  int32 = 7,
  int64 = 8,
  uint8 = 9,
};

enum class ReduceOp : std::uint8_t {
  sum = 1,
  avg = 2,  ///< sum divided by the group's size; integers truncate towards zero
  min = 3,  ///< NaN wins, as in torch
  max = 4,
  product = 5,
};

enum class Operation : std::uint8_t {
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
  all_gather_bytes = 11,  ///< of lengths that the ranks do not know of each other
};

/// Bytes per element; 0 for a value that is none of the above.
std::size_t size_of(DType dtype) noexcept;
std::string_view to_string(DType dtype) noexcept;
std::string_view to_string(ReduceOp op) noexcept;
std::string_view to_string(Operation operation) noexcept;

}  // namespace bimetal::comm

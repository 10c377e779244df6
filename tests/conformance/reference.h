#pragma once
// Plain reference of what collectives compute, on elements held as double. The values are chosen so
// that every intermediate result is exact in every type, bar the last quotient of avg.

#include <cstddef>
#include <string>
#include <vector>

#include "bimetal/comm/dtype.h"
#include "bimetal/comm/reduce/reduce_kernels.h"

namespace bimetal::testing {

inline constexpr comm::DType kAllTypes[] = {
    comm::DType::float32,  comm::DType::float64, comm::DType::float16,
    comm::DType::bfloat16, comm::DType::int8,    comm::DType::int16,
    comm::DType::int32,    comm::DType::int64,   comm::DType::uint8};

inline constexpr comm::ReduceOp kAllOps[] = {comm::ReduceOp::sum, comm::ReduceOp::avg,
                                             comm::ReduceOp::min, comm::ReduceOp::max,
                                             comm::ReduceOp::product};

inline bool is_floating(comm::DType dtype) {
  return dtype == comm::DType::float32 || dtype == comm::DType::float64 ||
         dtype == comm::DType::float16 || dtype == comm::DType::bfloat16;
}

/// Memory for elements of any type, read and written as double.
class Array {
 public:
  Array(std::size_t count, comm::DType dtype)
      : bytes_(count * comm::size_of(dtype)), count_(count), dtype_(dtype) {}

  std::size_t size() const { return count_; }
  comm::DType dtype() const { return dtype_; }
  double get(std::size_t i) const;
  void set(std::size_t i, double value);
  const std::vector<std::byte>& bytes() const { return bytes_; }

  comm::Buffer buffer() { return {bytes_.data(), count_, dtype_}; }
  comm::ConstBuffer view() const { return {bytes_.data(), count_, dtype_}; }

 private:
  std::vector<std::byte> bytes_;
  std::size_t count_;
  comm::DType dtype_;
};

/// Rank's contribution to a reduction. Never far from 0: sums and products of up to 8 ranks fit an
/// int8.
Array contributions(int rank, std::size_t count, comm::DType dtype, comm::ReduceOp op);

/// Compares `data` with elements [first, first + data.size()) of the reduction over `size` ranks:
/// empty, or the first difference in words.
std::string wrong_in_reduced(const Array& data, std::size_t first, int size, comm::ReduceOp op);

/// Elements [first, first + count) of what `rank` gives away where nothing is reduced.
Array payloads(int rank, std::size_t first, std::size_t count, comm::DType dtype);

/// Compares data[offset], … with elements [first, first + count) of what `from` gave away: empty,
/// or the first difference in words.
std::string wrong_in_given(const Array& data, std::size_t offset, int from, std::size_t first,
                           std::size_t count);

}  // namespace bimetal::testing

#include "conformance/reference.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>

namespace bimetal::testing {
namespace {

using comm::BFloat16;
using comm::DType;
using comm::Float16;
using comm::ReduceOp;

template <typename Function>
auto as_type(DType dtype, Function function) {
  switch (dtype) {
    case DType::float32: return function(float{});
    case DType::float64: return function(double{});
    case DType::float16: return function(Float16{});
    case DType::bfloat16: return function(BFloat16{});
    case DType::int8: return function(std::int8_t{});
    case DType::int16: return function(std::int16_t{});
    case DType::int32: return function(std::int32_t{});
    case DType::int64: return function(std::int64_t{});
    case DType::uint8: break;
  }
  return function(std::uint8_t{});
}

template <typename T>
constexpr bool is_half = sizeof(T) == 2 && !std::is_integral_v<T>;

template <typename T>
double widen(T value) {
  if constexpr (is_half<T>) {
    return static_cast<float>(value);
  } else {
    return static_cast<double>(value);
  }
}

template <typename T>
T narrow(double value) {
  if constexpr (is_half<T>) {
    return T(static_cast<float>(value));
  } else {
    return static_cast<T>(value);
  }
}

double average(double sum, int size, DType dtype) {
  switch (dtype) {
    case DType::float64: return sum / size;
    case DType::float32: return static_cast<float>(sum) / static_cast<float>(size);
    case DType::float16: return static_cast<float>(Float16(static_cast<float>(sum) / size));
    case DType::bfloat16: return static_cast<float>(BFloat16(static_cast<float>(sum) / size));
    default: return std::trunc(sum / size);
  }
}

// Element i of rank's.
double contribution(int rank, std::size_t i, DType dtype, ReduceOp op) {
  const auto mixed = i * 7 + static_cast<std::size_t>(rank) * 13;
  if (op == ReduceOp::product) return (i + rank) % 3 == 0 ? 2 : 1;
  const int lowest = dtype == DType::uint8 ? 0 : -3;
  return static_cast<double>(mixed % 11 % 7) + lowest;
}

// Element i over `size` ranks, as `dtype` holds it.
double reduced(int size, std::size_t i, DType dtype, ReduceOp op) {
  double result = contribution(0, i, dtype, op);
  for (int rank = 1; rank < size; ++rank) {
    const double value = contribution(rank, i, dtype, op);
    switch (op) {
      case ReduceOp::sum:
      case ReduceOp::avg: result += value; break;
      case ReduceOp::product: result *= value; break;
      case ReduceOp::min: result = std::min(result, value); break;
      case ReduceOp::max: result = std::max(result, value); break;
    }
  }
  return op == ReduceOp::avg ? average(result, size, dtype) : result;
}

// Element i of what `rank` gives away.
double payload(int rank, std::size_t i) {
  return static_cast<double>((i * 5 + static_cast<std::size_t>(rank) * 31) % 101);
}

std::string difference(std::size_t i, double got, double wanted) {
  return "element " + std::to_string(i) + " is " + std::to_string(got) + ", not " +
         std::to_string(wanted);
}

}  // namespace

double Array::get(std::size_t i) const {
  return as_type(dtype_, [&]<typename T>(T value) {
    std::memcpy(&value, bytes_.data() + i * sizeof(T), sizeof(T));
    return widen(value);
  });
}

void Array::set(std::size_t i, double value) {
  as_type(dtype_, [&]<typename T>(T) {
    const T narrowed = narrow<T>(value);
    std::memcpy(bytes_.data() + i * sizeof(T), &narrowed, sizeof(T));
  });
}

Array contributions(int rank, std::size_t count, DType dtype, ReduceOp op) {
  Array data(count, dtype);
  for (std::size_t i = 0; i < count; ++i) data.set(i, contribution(rank, i, dtype, op));
  return data;
}

std::string wrong_in_reduced(const Array& data, std::size_t first, int size, ReduceOp op) {
  for (std::size_t i = 0; i < data.size(); ++i) {
    const double wanted = reduced(size, first + i, data.dtype(), op);
    const bool same = data.get(i) == wanted;
    if (!same) return difference(first + i, data.get(i), wanted);
  }
  return {};
}

Array payloads(int rank, std::size_t first, std::size_t count, DType dtype) {
  Array data(count, dtype);
  for (std::size_t i = 0; i < count; ++i) data.set(i, payload(rank, first + i));
  return data;
}

std::string wrong_in_given(const Array& data, std::size_t offset, int from, std::size_t first,
                           std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) {
    const double wanted = payload(from, first + i);
    const bool same = data.get(offset + i) == wanted;
    if (!same) return difference(offset + i, data.get(offset + i), wanted);
  }
  return {};
}

}  // namespace bimetal::testing

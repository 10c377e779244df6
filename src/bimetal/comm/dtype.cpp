#include "bimetal/comm/dtype.h"

namespace bimetal::comm {

std::size_t size_of(DType dtype) noexcept {
  switch (dtype) {
    case DType::int8:
    case DType::uint8: return 1;
    case DType::float16:
    case DType::bfloat16:
    case DType::int16: return 2;
    case DType::float32:
    case DType::int32: return 4;
    case DType::float64:
    case DType::int64: return 8;
  }
  return 0;
}

std::string_view to_string(DType dtype) noexcept {
  switch (dtype) {
    case DType::float32: return "float32";
    case DType::float64: return "float64";
    case DType::float16: return "float16";
    case DType::bfloat16: return "bfloat16";
    case DType::int8: return "int8";
    case DType::int16: return "int16";
    case DType::int32: return "int32";
    case DType::int64: return "int64";
    case DType::uint8: return "uint8";
  }
  return "unknown type";
}

std::string_view to_string(ReduceOp op) noexcept {
  switch (op) {
    case ReduceOp::sum: return "sum";
    case ReduceOp::avg: return "avg";
    case ReduceOp::min: return "min";
    case ReduceOp::max: return "max";
    case ReduceOp::product: return "product";
  }
  return "unknown reduction";
}

std::string_view to_string(Operation operation) noexcept {
  switch (operation) {
    case Operation::all_reduce: return "all_reduce";
    case Operation::broadcast: return "broadcast";
    case Operation::reduce: return "reduce";
    case Operation::all_gather: return "all_gather";
    case Operation::reduce_scatter: return "reduce_scatter";
    case Operation::scatter: return "scatter";
    case Operation::gather: return "gather";
    case Operation::all_to_all: return "all_to_all";
    case Operation::send_recv: return "send_recv";
    case Operation::barrier: return "barrier";
    case Operation::all_gather_bytes: return "all_gather_bytes";
  }
  return "unknown operation";
}

}  // namespace bimetal::comm

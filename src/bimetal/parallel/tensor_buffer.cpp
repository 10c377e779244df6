#include "bimetal/parallel/tensor_buffer.h"

#include <fmt/format.h>

#include "bimetal/base/error.h"

namespace bimetal::parallel {

std::optional<comm::DType> comm_dtype(torch::ScalarType dtype) noexcept {
  switch (dtype) {
    case torch::kFloat32: return comm::DType::float32;
    case torch::kFloat64: return comm::DType::float64;
    case torch::kFloat16: return comm::DType::float16;
    case torch::kBFloat16: return comm::DType::bfloat16;
    case torch::kInt8: return comm::DType::int8;
    case torch::kInt16: return comm::DType::int16;
    case torch::kInt32: return comm::DType::int32;
    case torch::kInt64: return comm::DType::int64;
    case torch::kUInt8: return comm::DType::uint8;
    default: return std::nullopt;
  }
}

comm::DType comm_dtype_of(const torch::Tensor& tensor) {
  if (const auto dtype = comm_dtype(tensor.scalar_type())) return *dtype;
  throw Error(ErrorCode::Unsupported, fmt::format("tensors of type {} cannot be exchanged",
                                                  c10::toString(tensor.scalar_type())));
}

comm::Buffer tensor_buffer(const torch::Tensor& tensor) {
  if (!tensor.device().is_cpu() || !tensor.is_contiguous()) {
    throw Error(ErrorCode::InvalidArgument,
                "only contiguous CPU tensors can be handed to the network; copy it first");
  }
  const auto dtype = comm_dtype_of(tensor);
  return {tensor.data_ptr(), static_cast<std::size_t>(tensor.numel()), dtype};
}

}  // namespace bimetal::parallel

#include "bimetal/comm/compress/compressed_reduction.h"

#include <algorithm>
#include <vector>

#include "bimetal/base/error.h"
#include "bimetal/comm/compress/dense_codec.h"
#include "bimetal/comm/half.h"

namespace bimetal::comm {
namespace {

void reduce_floats(Channel& channel, std::span<float> data, ReduceOp op,
                   const Compression& compression) {
  if (is_dense(compression.scheme)) return dense_all_reduce(channel, data, op, compression);
  if (compression.scheme == Scheme::topk) return sparse_all_reduce(channel, data, op, compression);
  low_rank_all_reduce(channel, data, op, compression);
}

template <typename T>
void reduce_converted(Channel& channel, std::span<T> data, ReduceOp op,
                      const Compression& compression) {
  std::vector<float> floats(data.size());
  std::ranges::transform(data, floats.begin(), [](T value) { return static_cast<float>(value); });
  reduce_floats(channel, floats, op, compression);
  std::ranges::transform(floats, data.begin(), [](float value) { return static_cast<T>(value); });
}

}  // namespace

void compressed_all_reduce(Channel& channel, Buffer data, ReduceOp op,
                           const Compression& compression) {
  const auto elements = [&]<typename T>(T) {
    return std::span(static_cast<T*>(data.data), data.count);
  };
  switch (data.dtype) {
    case DType::float32: return reduce_floats(channel, elements(float{}), op, compression);
    case DType::float64: return reduce_converted(channel, elements(double{}), op, compression);
    case DType::float16: return reduce_converted(channel, elements(Float16{}), op, compression);
    case DType::bfloat16: return reduce_converted(channel, elements(BFloat16{}), op, compression);
    default: throw Error(ErrorCode::Internal, "a compressed call with integers");
  }
}

}  // namespace bimetal::comm

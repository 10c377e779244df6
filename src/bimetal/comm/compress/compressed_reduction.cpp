#include "bimetal/comm/compress/compressed_reduction.h"

#include <algorithm>
#include <vector>

#include "bimetal/base/error.h"
#include "bimetal/comm/compress/dense_codec.h"
#include "bimetal/comm/compress/island_reduction.h"
#include "bimetal/comm/reduce/half.h"

namespace bimetal::comm {
namespace {

void reduce_by_scheme(Channel& channel, std::span<float> data, ReduceOp op,
                      const Compression& compression) {
  if (is_dense(compression.scheme)) return dense_all_reduce(channel, data, op, compression);
  if (compression.scheme == Scheme::topk) return sparse_all_reduce(channel, data, op, compression);
  low_rank_all_reduce(channel, data, op, compression);
}

/// One call, on data that are float32 or become so.
struct Reduction32 {
  Channel& channel;
  ReduceOp op;
  const Compression& compression;
  const Islands& islands;

  void run(std::span<float> data) const {
    if (compression.links == CompressedLinks::all) {
      return reduce_by_scheme(channel, data, op, compression);
    }
    island_all_reduce(channel, data, op, islands, compression,
                      [this](Channel& between, std::span<float> sums) {
                        reduce_by_scheme(between, sums, ReduceOp::sum, compression);
                      });
  }

  template <typename T>
  void run(std::span<T> data) const {
    std::vector<float> floats(data.size());
    std::ranges::transform(data, floats.begin(), [](T value) { return static_cast<float>(value); });
    run(std::span(floats));
    std::ranges::transform(floats, data.begin(), [](float value) { return static_cast<T>(value); });
  }
};

}  // namespace

void compressed_all_reduce(Channel& channel, Buffer data, ReduceOp op,
                           const Compression& compression, const Islands& islands) {
  const Reduction32 reduction{channel, op, compression, islands};
  const auto elements = [&]<typename T>(T) {
    return std::span(static_cast<T*>(data.data), data.count);
  };
  switch (data.dtype) {
    case DType::float32: return reduction.run(elements(float{}));
    case DType::float64: return reduction.run(elements(double{}));
    case DType::float16: return reduction.run(elements(Float16{}));
    case DType::bfloat16: return reduction.run(elements(BFloat16{}));
    default: throw Error(ErrorCode::Internal, "a compressed call with integers");
  }
}

}  // namespace bimetal::comm

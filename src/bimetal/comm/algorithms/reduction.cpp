#include "bimetal/comm/algorithms/reduction.h"

#include "bimetal/comm/reduce/reduce_kernels.h"

namespace bimetal::comm {

Combine Reduction::combine() const {
  return [dtype = dtype, op = op](std::span<std::byte> there, std::span<const std::byte> arrived) {
    accumulate(there.data(), arrived.data(), there.size() / size_of(dtype), dtype, op);
  };
}

Combine Reduction::combine_last() const {
  if (op != ReduceOp::avg) return combine();
  return [*this](std::span<std::byte> there, std::span<const std::byte> arrived) {
    accumulate(there.data(), arrived.data(), there.size() / size_of(dtype), dtype, op);
    finish(there);
  };
}

void Reduction::finish(std::span<std::byte> data) const {
  if (op == ReduceOp::avg) divide(data.data(), data.size() / size_of(dtype), dtype, size);
}

}  // namespace bimetal::comm

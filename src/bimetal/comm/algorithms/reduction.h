#pragma once
// The reduction of a call, as the algorithms use it.

#include <cstddef>
#include <span>

#include "bimetal/comm/dtype.h"
#include "bimetal/comm/mailbox/inbox.h"

namespace bimetal::comm {

struct Reduction {
  DType dtype = DType::float32;
  ReduceOp op = ReduceOp::sum;
  int size = 1;  ///< ranks that contribute

  /// there = there op arrived.
  Combine combine() const;

  /// The same for the last contribution to an element: avg's division follows.
  Combine combine_last() const;

  /// What is left to do when all contributions are in: avg's division.
  void finish(std::span<std::byte> data) const;
};

}  // namespace bimetal::comm

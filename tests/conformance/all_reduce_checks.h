#pragma once
// The checks of every all-reduce, whichever algorithm and islands it runs on.

#include <gtest/gtest.h>

#include <functional>
#include <random>
#include <vector>

#include "bimetal/comm/group.h"
#include "conformance/reference.h"
#include "support/thread_ranks.h"

namespace bimetal::testing {

/// One rank's part: every element is the reference's.
inline void check_all_reduce(int rank, comm::Group group, std::size_t count, comm::DType dtype,
                             comm::ReduceOp op) {
  Array data = contributions(rank, count, dtype, op);
  group.all_reduce(data.buffer(), op).wait();
  ASSERT_EQ(wrong_in_reduced(data, 0, group.size(), op), "")
      << to_string(op) << " of " << count << " " << to_string(dtype);
}

/// All ranks of a world of `size`, which `on_ranks` runs, get the same bits of an average whose
/// rounding depends on the order of additions.
inline void check_same_bits(std::size_t size, std::size_t count, comm::DType dtype,
                            const std::function<void(const RankBody&)>& on_ranks) {
  std::vector<Array> results(size, Array(count, dtype));
  on_ranks([&](int rank, comm::Group group) {
    Array& data = results[static_cast<std::size_t>(rank)];
    std::mt19937 random(static_cast<unsigned>(rank));
    std::normal_distribution<double> normal;
    for (std::size_t i = 0; i < count; ++i) data.set(i, normal(random));
    group.all_reduce(data.buffer(), comm::ReduceOp::avg).wait();
  });
  for (const Array& other : results) {
    ASSERT_EQ(other.bytes(), results.front().bytes()) << to_string(dtype) << " × " << count;
  }
}

}  // namespace bimetal::testing

// all_reduce, reduce and reduce_scatter against the reference: every type, operator, world size.
#include <gtest/gtest.h>

#include <numeric>

#include "conformance/all_reduce_checks.h"
#include "conformance/reference.h"
#include "conformance/transports.h"

namespace bimetal::testing {
namespace {

using comm::DType;
using comm::Group;
using comm::ReduceOp;

class Reductions : public OnWorlds {
 protected:
  // Elements [first, first + data.size()) of the whole result.
  static void expect_reduced(const Array& data, std::size_t first, int size, ReduceOp op) {
    ASSERT_EQ(wrong_in_reduced(data, first, size, op), "")
        << to_string(op) << " of " << data.size() << " " << to_string(data.dtype());
  }

  static void sweep(const std::function<void(std::size_t, DType, ReduceOp)>& check) {
    for (const DType dtype : tested_types()) {
      for (const ReduceOp op : tested_ops()) {
        for (const std::size_t count : {0, 1, 7, 1000}) check(count, dtype, op);
      }
    }
    // Long enough for the ring, for several parts, and not divisible by anything.
    check(100003, DType::float16, ReduceOp::avg);
    check(100003, DType::int8, ReduceOp::avg);
    check(200003, DType::int64, ReduceOp::max);
    check(kLongCount, DType::float32, ReduceOp::sum);
  }
};

TEST_P(Reductions, AllReduce) {
  on_ranks([&](int rank, Group group) {
    sweep([&](std::size_t count, DType dtype, ReduceOp op) {
      Array data = contributions(rank, count, dtype, op);
      group.all_reduce(data.buffer(), op).wait();
      expect_reduced(data, 0, group.size(), op);
    });
  });
}

TEST_P(Reductions, ReduceToEveryRoot) {
  on_ranks([&](int rank, Group group) {
    int root = 0;
    sweep([&](std::size_t count, DType dtype, ReduceOp op) {
      root = (root + 1) % group.size();
      Array data = contributions(rank, count, dtype, op);
      group.reduce(data.buffer(), root, op).wait();
      if (rank == root) expect_reduced(data, 0, group.size(), op);
    });
  });
}

TEST_P(Reductions, ReduceScatter) {
  on_ranks([&](int rank, Group group) {
    sweep([&](std::size_t whole, DType dtype, ReduceOp op) {
      const std::size_t count = whole / static_cast<std::size_t>(group.size());
      Array input = contributions(rank, count * static_cast<std::size_t>(group.size()), dtype, op);
      Array output(count, dtype);
      group.reduce_scatter(input.buffer(), output.buffer(), op).wait();
      expect_reduced(output, count * static_cast<std::size_t>(rank), group.size(), op);
    });
  });
}

// The whole is cut by weights 0, 3, 1, 4, 2, 0, …: some ranks get nothing.
TEST_P(Reductions, ReduceScatterOfUnequalParts) {
  on_ranks([&](int rank, Group group) {
    sweep([&](std::size_t whole, DType dtype, ReduceOp op) {
      std::vector<std::size_t> counts;
      for (int r = 0; r < group.size(); ++r) {
        counts.push_back(static_cast<std::size_t>(r) * 3 % 5 * (whole / 8));
      }
      counts.back() += 5;
      const auto total = std::accumulate(counts.begin(), counts.end(), std::size_t{0});
      const auto own = counts.begin() + rank;
      Array input = contributions(rank, total, dtype, op);
      Array output(*own, dtype);
      group.reduce_scatter(input.buffer(), output.buffer(), counts, op).wait();
      expect_reduced(output, std::accumulate(counts.begin(), own, std::size_t{0}), group.size(),
                     op);
    });
  });
}

// Rounding depends on the order of additions; the fabric promises that all ranks see one order.
TEST_P(Reductions, AllRanksGetTheSameBits) {
  for (const DType dtype : {DType::float32, DType::float64, DType::float16, DType::bfloat16}) {
    for (const std::size_t count : {513, 60013}) {
      check_same_bits(static_cast<std::size_t>(size()), count, dtype,
                      [&](const RankBody& body) { on_ranks(body); });
    }
  }
}

TEST_P(Reductions, NotANumberReachesEveryRank) {
  on_ranks([&](int rank, Group group) {
    for (const ReduceOp op : tested_ops()) {
      for (const std::size_t count : {9, 20000}) {
        Array data(count, DType::float32);
        for (std::size_t i = 0; i < count; ++i) data.set(i, 1);
        if (rank == group.size() / 2) data.set(count / 2, std::numeric_limits<double>::quiet_NaN());
        group.all_reduce(data.buffer(), op).wait();
        for (std::size_t i = 0; i < count; ++i) {
          ASSERT_EQ(std::isnan(data.get(i)), i == count / 2) << to_string(op) << ", element " << i;
        }
      }
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Worlds, Reductions, ::testing::ValuesIn(worlds({1, 2, 3, 5, 8})),
                         [](const auto& info) { return name_of(info.param); });

}  // namespace
}  // namespace bimetal::testing

// Every all-reduce algorithm against the reference: each type, operator, world size and count.

#include <gtest/gtest.h>

#include <numeric>

#include "bimetal/comm/algorithm.h"
#include "conformance/all_reduce_checks.h"
#include "conformance/reference.h"
#include "conformance/transports.h"
#include "support/errors.h"
#include "support/in_process_mesh.h"

namespace bimetal::testing {
namespace {

using comm::Algorithm;
using comm::DType;
using comm::Group;
using comm::ReduceOp;

struct Case {
  Algorithm algorithm;
  World world;
};

std::vector<Case> cases() {
  std::vector<Case> all;
  for (const auto algorithm :
       {Algorithm::automatic, Algorithm::recursive_doubling, Algorithm::halving_doubling,
        Algorithm::ring, Algorithm::tree, Algorithm::two_level, Algorithm::weighted}) {
    for (const World& world : worlds({1, 2, 3, 5, 8})) all.push_back({algorithm, world});
  }
  return all;
}

class AllReduceAlgorithms : public ::testing::TestWithParam<Case> {
 protected:
  void on_ranks(const RankBody& body) {
    comm::GroupOptions options;
    options.algorithm = GetParam().algorithm;
    const auto& world = GetParam().world;
    run_ranks(make_groups(world.transport, world.size, options), body);
  }
};

TEST_P(AllReduceAlgorithms, AgreeWithTheReference) {
  on_ranks([](int rank, Group group) {
    for (const DType dtype : tested_types()) {
      for (const std::size_t count : {0, 1, 7, 1001}) {
        for (const ReduceOp op : tested_ops()) check_all_reduce(rank, group, count, dtype, op);
      }
      check_all_reduce(rank, group, 70001, dtype, ReduceOp::avg);
    }
    check_all_reduce(rank, group, kLongCount, DType::float32, ReduceOp::sum);
  });
}

TEST_P(AllReduceAlgorithms, GiveAllRanksTheSameBits) {
  const auto size = static_cast<std::size_t>(GetParam().world.size);
  for (const std::size_t count : {5, 513, 100003}) {
    check_same_bits(size, count, DType::float32, [&](const RankBody& body) { on_ranks(body); });
  }
}

TEST_P(AllReduceAlgorithms, ManyCallsInFlightDoNotMix) {
  on_ranks([](int rank, Group group) {
    constexpr int kCalls = 12;
    std::vector<std::vector<float>> data;
    std::vector<comm::Work> works;
    for (int call = 0; call < kCalls; ++call) {
      data.emplace_back(static_cast<std::size_t>(1) << (2 * call % 18),
                        static_cast<float>(rank + call));
    }
    for (auto& one : data) works.push_back(group.all_reduce(comm::buffer(one)));
    const int n = group.size();
    for (int call = 0; call < kCalls; ++call) {
      works[static_cast<std::size_t>(call)].wait();
      for (const float value : data[static_cast<std::size_t>(call)]) {
        ASSERT_EQ(value, static_cast<float>(n * (n - 1) / 2 + n * call));
      }
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Algorithms, AllReduceAlgorithms, ::testing::ValuesIn(cases()),
                         [](const auto& info) {
                           return std::string(to_string(info.param.algorithm)) + "_" +
                                  name_of(info.param.world);
                         });

// Ranks that ask for different algorithms must not wait for each other's steps.
TEST(AlgorithmChoice, DifferentWishesAreAMismatch) {
  std::vector<comm::GroupOptions> wishes(2);
  wishes[0].algorithm = Algorithm::ring;
  wishes[1].algorithm = Algorithm::tree;
  run_ranks(make_groups(make_in_process_meshes(2), wishes), [](int, Group group) {
    std::vector<float> data(100);
    expect_error(ErrorCode::CallMismatch, {"by ring", "by tree"},
                 [&] { group.all_reduce(comm::buffer(data)).wait(); });
  });
}

// all_reduce, reduce and reduce_scatter against the reference: every type, operator, world size.
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

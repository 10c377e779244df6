// Worlds in which some ranks share memory and others do not: all-reduces in two levels, of islands
// of all shapes, and what else a group does there.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <set>
#include <vector>

#include "bimetal/base/error.h"
#include "bimetal/comm/compress/compression.h"
#include "conformance/all_reduce_checks.h"
#include "conformance/reference.h"
#include "conformance/schemes.h"
#include "conformance/transports.h"
#include "support/errors.h"

namespace bimetal::testing {
namespace {

using comm::Algorithm;
using comm::DType;
using comm::Group;
using comm::ReduceOp;

// The island of each rank.
using Shape = std::vector<int>;

std::string name_of(const Shape& shape) {
  std::string name = "Islands";
  for (const int island : shape) name += std::to_string(island);
  return name;
}

class TwoLevels : public ::testing::TestWithParam<Shape> {
 protected:
  void on_ranks(const RankBody& body, Algorithm algorithm = Algorithm::two_level) {
    comm::GroupOptions options;
    options.algorithm = algorithm;
    run_ranks(make_island_groups(GetParam(), options), body);
  }
};

TEST_P(TwoLevels, AllRanksKnowTheIslands) {
  on_ranks([](int rank, Group group) {
    const std::set<int> names(GetParam().begin(), GetParam().end());
    EXPECT_EQ(group.topology().islands.size(), names.size());
    for (const int other : group.topology().island_of(rank)) {
      EXPECT_EQ(GetParam()[static_cast<std::size_t>(other)],
                GetParam()[static_cast<std::size_t>(rank)]);
    }
    EXPECT_EQ(group.transport(), comm::Transport::tcp);
  });
}

TEST_P(TwoLevels, AgreeWithTheReference) {
  on_ranks([](int rank, Group group) {
    for (const DType dtype : tested_types()) {
      for (const std::size_t count : {0, 1, 7, 1001}) {
        for (const ReduceOp op : tested_ops()) check_all_reduce(rank, group, count, dtype, op);
      }
      check_all_reduce(rank, group, 70001, dtype, ReduceOp::avg);
    }
    // Several blocks, and a last one that is not full.
    check_all_reduce(rank, group, 2000003, DType::float32, ReduceOp::sum);
  });
}

TEST_P(TwoLevels, AreChosenByThemselvesForLongMessages) {
  on_ranks(
      [](int rank, Group group) {
        for (const std::size_t count : {3, 5000, 30001, 300001}) {
          check_all_reduce(rank, group, count, DType::float32, ReduceOp::sum);
        }
        EXPECT_THAT(group.flight_recorder(), ::testing::HasSubstr("two_level"));
      },
      Algorithm::automatic);
}

TEST_P(TwoLevels, GiveAllRanksTheSameBits) {
  for (const std::size_t count : {5, 513, 300003}) {
    check_same_bits(GetParam().size(), count, DType::float32,
                    [&](const RankBody& body) { on_ranks(body); });
  }
}

TEST_P(TwoLevels, ASubgroupHasItsOwn) {
  on_ranks([](int rank, Group group) {
    std::vector<int> all_but_first;
    for (int r = 1; r < group.size(); ++r) all_but_first.push_back(r);
    Group part = group.subgroup(all_but_first);
    if (rank == 0) return;
    check_all_reduce(part.rank(), part, 50001, DType::float64, ReduceOp::sum);
  });
}

// One rank of an island makes another call: all ranks end with a mismatch, whichever noticed it.
TEST_P(TwoLevels, DifferentCallsEndInAMismatch) {
  on_ranks([](int rank, Group group) {
    std::vector<float> data(100000);
    expect_error(ErrorCode::CallMismatch, {}, [&] {
      if (rank == group.size() - 1) {
        group.broadcast(comm::buffer(data), 0).wait();
        // It may have been through before anybody noticed.
        group.barrier().wait();
      } else {
        group.all_reduce(comm::buffer(data)).wait();
      }
    });
  });
}

// A rank that does not come is named by those that wait for it in memory, and by the others.
TEST_P(TwoLevels, AMissingRankIsNamed) {
  const int missing = static_cast<int>(GetParam().size()) - 1;
  const auto over = Deadline::after(std::chrono::seconds(60));
  on_ranks([&](int rank, Group group) {
    std::vector<float> data(300000);
    if (rank == missing) {
      // Its end is that of the others' patience.
      try {
        std::vector<float> word(1);
        group.recv(comm::buffer(word), 0, 0, over).wait();
      } catch (const Error& error) {
        EXPECT_EQ(error.code(), ErrorCode::Timeout) << error.what();
      }
      return;
    }
    EXPECT_EQ(expect_error(ErrorCode::Timeout, {},
                           [&] {
                             group
                                 .all_reduce(comm::buffer(data), ReduceOp::sum,
                                             Deadline::after(std::chrono::milliseconds(800)))
                                 .wait();
                           })
                  .rank(),
              missing);
  });
}

INSTANTIATE_TEST_SUITE_P(Shapes, TwoLevels,
                         ::testing::Values(Shape{0, 0, 1}, Shape{0, 0, 1, 1}, Shape{0, 1, 1, 0},
                                           Shape{0, 0, 0, 1, 1}, Shape{0, 1, 2, 2},
                                           Shape{0, 0, 1, 1, 2, 2}, Shape{0, 1, 0, 1, 0, 1, 0, 1}),
                         [](const auto& info) { return name_of(info.param); });

// transport=shm is for worlds of one island.
TEST(Islands, CannotHaveSharedMemoryAlone) {
  std::vector<comm::GroupOptions> options(2);
  for (std::size_t rank = 0; rank < 2; ++rank) {
    options[rank].transport = comm::Transport::shm;
    options[rank].island = std::to_string(rank);
  }
  expect_error(ErrorCode::Unsupported, {},
               [&] { make_groups(make_in_process_meshes(2), options); });
}

// Compression of what goes from one island to another alone.
using comm::buffer;
using comm::CompressedLinks;
using comm::Compression;
using comm::Scheme;

std::vector<float> whole_numbers(int rank, std::size_t count) {
  std::vector<float> values(count);
  for (std::size_t i = 0; i < count; ++i) {
    values[i] = static_cast<float>((i * 37 + static_cast<std::size_t>(rank) * 101) % 211) - 105.0f;
  }
  return values;
}

Compression between(Scheme scheme) {
  return {.scheme = scheme,
          .links = CompressedLinks::between_islands,
          .density = 0.01,
          .rank = 2,
          .memory = std::make_shared<comm::BucketMemory>()};
}

std::vector<float> sum_of(int ranks, std::size_t count) {
  std::vector<float> sum(count);
  for (int rank = 0; rank < ranks; ++rank) {
    const auto values = whole_numbers(rank, count);
    for (std::size_t i = 0; i < count; ++i) sum[i] += values[i];
  }
  return sum;
}

// Small whole numbers: every sum of them is exact in float32.
TEST(IslandCompression, LosesNothingWhereAllShareMemory) {
  run_ranks(make_island_groups({0, 0, 0}), [](int rank, Group group) {
    for (const Scheme scheme : kSchemes) {
      for (const std::size_t count : {0ul, 1ul, 1000ul, 300001ul}) {
        const auto how = between(scheme);
        for (int step = 0; step < 2; ++step) {
          auto data = whole_numbers(rank, count);
          group.all_reduce(buffer(data), ReduceOp::sum, how).wait();
          ASSERT_EQ(data, sum_of(3, count)) << to_string(scheme) << " of " << count;
        }
      }
    }
  });
}

// With as many elements as values, int8's blocks hold what bfloat16 would round.
TEST(IslandCompression, RoundsOncePerIslandAndNotPerRank) {
  const std::vector<int> islands = {0, 0, 0, 0, 1};
  run_ranks(make_island_groups(islands), [](int rank, Group group) {
    const std::size_t count = 70001;
    auto data = whole_numbers(rank, count);
    group.all_reduce(buffer(data), ReduceOp::avg, between(Scheme::int8)).wait();
    const auto sum = sum_of(5, count);
    // Island 0's sum is at most 420, rounded once by one of them; the whole's at most 525.
    const float bound = (420.0f + 525.0f) / 254 * 1.02f / 5;
    for (std::size_t i = 0; i < count; ++i) ASSERT_NEAR(data[i], sum[i] / 5, bound) << i;
  });
}

TEST(IslandCompression, OneRankOfAnIslandSendsForAll) {
  std::vector<double> sent(5);
  run_ranks(make_island_groups({0, 0, 1, 1, 1}), [&](int rank, Group group) {
    auto data = whole_numbers(rank, std::size_t{1} << 18);
    group.barrier().wait();
    const auto before = group.bytes_sent();
    group.all_reduce(buffer(data), ReduceOp::sum, between(Scheme::int8)).wait();
    sent[static_cast<std::size_t>(rank)] = static_cast<double>(group.bytes_sent() - before);
  });
  const double plain = static_cast<double>(sizeof(float) << 18);  // of two ranks, each way
  for (const std::size_t first : {0u, 2u}) {
    EXPECT_LT(sent[first], plain / 3.85);
    EXPECT_GT(sent[first], plain / 4.1);
  }
  for (const std::size_t other : {1u, 3u, 4u}) EXPECT_LT(sent[other], 1000);
}

}  // namespace
}  // namespace bimetal::testing

// Worlds in which some ranks share memory and others do not: all-reduces in two levels, of islands
// of all shapes, and what else a group does there.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <set>

#include "bimetal/base/error.h"
#include "conformance/all_reduce_checks.h"
#include "conformance/reference.h"
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

// Calls by both ways in one order; nothing is in flight alone.
TEST_P(TwoLevels, MixWithOtherCalls) {
  on_ranks([](int rank, Group group) {
    constexpr std::size_t kCount = 100001;
    const auto n = static_cast<std::size_t>(group.size());
    std::vector<float> first(kCount, static_cast<float>(rank)), second(kCount, 1);
    std::vector<float> third(kCount, static_cast<float>(rank)), gathered(n);
    const std::vector<float> own{static_cast<float>(rank)};
    std::vector<comm::Work> works;
    for (int round = 0; round < 5; ++round) {
      works.push_back(group.all_reduce(comm::buffer(first), ReduceOp::max));
      works.push_back(group.broadcast(comm::buffer(third), group.size() - 1));
      works.push_back(group.all_reduce(comm::buffer(second), ReduceOp::avg));
      works.push_back(group.all_gather(comm::buffer(own), comm::buffer(gathered)));
      works.push_back(group.barrier());
    }
    for (const auto& work : works) work.wait();
    for (std::size_t i = 0; i < kCount; ++i) {
      ASSERT_EQ(first[i], static_cast<float>(n - 1));
      ASSERT_EQ(second[i], 1);
      ASSERT_EQ(third[i], static_cast<float>(n - 1));
    }
    for (std::size_t r = 0; r < n; ++r) ASSERT_EQ(gathered[r], static_cast<float>(r));
  });
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

// One rank of an island makes another call: everybody ends with a mismatch, whoever noticed it.
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

}  // namespace
}  // namespace bimetal::testing

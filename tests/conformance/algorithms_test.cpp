// Every all-reduce algorithm against the reference: each type, operator, world size and count.
#include <gtest/gtest.h>

#include <thread>

#include "bimetal/comm/algorithm.h"
#include "conformance/all_reduce_checks.h"
#include "conformance/reference.h"
#include "conformance/transports.h"
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
  auto meshes = make_in_process_meshes(2);
  const Algorithm wishes[] = {Algorithm::ring, Algorithm::tree};
  std::vector<std::thread> ranks;
  std::vector<std::string> messages(2);
  for (std::size_t rank = 0; rank < 2; ++rank) {
    ranks.emplace_back([&, rank] {
      comm::GroupOptions options;
      options.algorithm = wishes[rank];
      auto group = comm::make_group(std::move(meshes[rank]), options);
      std::vector<float> data(100);
      try {
        group.all_reduce(comm::buffer(data)).wait();
      } catch (const Error& error) {
        EXPECT_EQ(error.code(), ErrorCode::CallMismatch);
        messages[rank] = error.what();
      }
    });
  }
  for (auto& rank : ranks) rank.join();
  for (const auto& message : messages) {
    EXPECT_NE(message.find("by ring"), std::string::npos) << message;
    EXPECT_NE(message.find("by tree"), std::string::npos) << message;
  }
}

}  // namespace
}  // namespace bimetal::testing

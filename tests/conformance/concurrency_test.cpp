// Several operations in flight, messages beside collectives, subgroups.
#include <gtest/gtest.h>

#include <atomic>
#include <map>
#include <numeric>

#include "conformance/transports.h"

namespace bimetal::testing {
namespace {

using comm::buffer;
using comm::Group;
using comm::Work;

class Concurrency : public OnWorlds {};

TEST_P(Concurrency, ManyCollectivesInFlightEndInAnyOrderOfWaiting) {
  on_ranks([&](int rank, Group group) {
    constexpr int kCalls = 40;
    std::vector<std::vector<float>> data;
    std::vector<Work> works;
    for (int call = 0; call < kCalls; ++call) {
      // Short and long ones in turn, so that different algorithms are in flight together.
      data.emplace_back(call % 2 ? 30000 : 3, static_cast<float>(rank + call));
    }
    for (int call = 0; call < kCalls; ++call) {
      works.push_back(call % 5 == 4 ? group.broadcast(buffer(data[call]), call % group.size())
                                    : group.all_reduce(buffer(data[call])));
    }
    for (int call = kCalls - 1; call >= 0; --call) {
      works[call].wait();
      const int n = group.size();
      const int expected = call % 5 == 4 ? call % n + call : n * (n - 1) / 2 + n * call;
      for (const float value : data[call]) ASSERT_EQ(value, expected) << "call " << call;
    }
  });
}

TEST_P(Concurrency, MessagesCrossEachOtherAndCollectives) {
  on_ranks([&](int rank, Group group) {
    const int n = group.size();
    std::vector<Work> works;
    std::map<int, std::vector<std::int64_t>> sent, received;
    std::vector<float> sum(50000, 1.0f);
    for (int peer = 0; peer < n; ++peer) {
      if (peer == rank) continue;
      sent[peer].assign(70001, rank * 100 + peer);
      received[peer].assign(70001, -1);
      works.push_back(group.send(buffer(sent[peer]), peer, 5));
    }
    works.push_back(group.all_reduce(buffer(sum)));
    for (auto& [peer, data] : received) works.push_back(group.recv(buffer(data), peer, 5));
    works.push_back(group.barrier());
    for (const auto& work : works) work.wait();
    for (auto& [peer, data] : received) {
      for (const auto value : data) ASSERT_EQ(value, peer * 100 + rank);
    }
    for (const float value : sum) ASSERT_EQ(value, n);
  });
}

TEST_P(Concurrency, MessagesAreMatchedByTagAndThenInOrder) {
  on_ranks([&](int rank, Group group) {
    if (group.size() == 1) return;
    constexpr int kTags = 5, kEach = 3;
    if (rank == 0) {
      std::vector<std::vector<float>> data;
      std::vector<Work> works;
      for (int i = 0; i < kEach; ++i) {
        for (int tag = 0; tag < kTags; ++tag) data.push_back({float(tag), float(i)});
      }
      for (std::size_t k = 0; k < data.size(); ++k) {
        works.push_back(group.send(buffer(data[k]), 1, k % kTags));
      }
      for (const auto& work : works) work.wait();
    } else if (rank == 1) {
      for (int tag = kTags - 1; tag >= 0; --tag) {
        for (int i = 0; i < kEach; ++i) {
          std::vector<float> data(2);
          group.recv(buffer(data), 0, static_cast<std::uint64_t>(tag)).wait();
          EXPECT_EQ(data, (std::vector<float>{float(tag), float(i)}));
        }
      }
    }
    group.barrier().wait();
  });
}

TEST_P(Concurrency, SubgroupsWorkSideBySideWithTheirParent) {
  on_ranks([&](int rank, Group world) {
    std::vector<int> even, odd;
    for (int r = 0; r < world.size(); ++r) (r % 2 ? odd : even).push_back(r);
    std::reverse(even.begin(), even.end());
    Group even_group = world.subgroup(even);
    Group odd_group = odd.empty() ? Group() : world.subgroup(odd);
    EXPECT_EQ(static_cast<bool>(even_group), rank % 2 == 0);
    EXPECT_EQ(static_cast<bool>(odd_group), rank % 2 == 1);
    Group mine = rank % 2 ? odd_group : even_group;
    const auto& members = rank % 2 ? odd : even;
    ASSERT_EQ(mine.size(), static_cast<int>(members.size()));
    EXPECT_EQ(members[static_cast<std::size_t>(mine.rank())], rank);

    std::vector<std::int32_t> in_mine(20001, rank), in_world(20001, rank);
    auto first = mine.all_reduce(buffer(in_mine));
    auto second = world.all_reduce(buffer(in_world));
    second.wait();
    first.wait();
    EXPECT_EQ(in_mine.back(), std::reduce(members.begin(), members.end()));
    EXPECT_EQ(in_world.back(), world.size() * (world.size() - 1) / 2);

    std::vector<std::int32_t> ranks(members.size());
    const std::vector<std::int32_t> own{rank};
    mine.all_gather(buffer(own), buffer(ranks)).wait();
    EXPECT_TRUE(std::ranges::equal(ranks, members));
  });
}

TEST_P(Concurrency, CallbacksRunOnce) {
  std::atomic<int> calls{0};
  on_ranks([&](int rank, Group group) {
    std::vector<float> data(1000, 1);
    const auto count = [&](const std::exception_ptr& error) {
      EXPECT_FALSE(error);
      ++calls;
    };
    auto work = group.all_reduce(buffer(data));
    work.on_done(count);
    work.wait();
    work.on_done(count);
  });
  EXPECT_EQ(calls.load(), 2 * size());
}

TEST_P(Concurrency, GroupsOpenedAndClosedAgainAndAgain) {
  for (int round = 0; round < 5; ++round) {
    on_ranks([&](int rank, Group group) {
      std::vector<float> data(5000, 1);
      group.all_reduce(buffer(data)).wait();
      if (round % 2) group.close(Deadline::after(std::chrono::seconds(30)));
    });
  }
}

INSTANTIATE_TEST_SUITE_P(Worlds, Concurrency, ::testing::ValuesIn(worlds({1, 2, 3, 5, 8})),
                         [](const auto& info) { return name_of(info.param); });

}  // namespace
}  // namespace bimetal::testing

// Long point-to-point messages: through memory where the two ranks share it, in parts that wait for
// room.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>

#include "bimetal/base/error.h"
#include "conformance/transports.h"

namespace bimetal::testing {
namespace {

using comm::buffer;
using comm::Group;
using comm::Work;
using ::testing::HasSubstr;

/// More than a ring holds at once, and no whole number of parts.
constexpr std::size_t kLongMessage = (std::size_t{5} << 20) / 4 + 3;

std::vector<float> numbers(std::size_t count, float first) {
  std::vector<float> all(count);
  std::iota(all.begin(), all.end(), first);
  return all;
}

class Messages : public OnWorlds {
 protected:
  /// Until the first two ranks have agreed on memory, if they share any.
  static void warm_up(Group group) {
    auto data = numbers(20000, 0);
    for (int round = 0; round < 3 && group.rank() < 2; ++round) {
      const int peer = 1 - group.rank();
      std::vector<float> other(data.size());
      const auto sent = group.send(buffer(data), peer, 99);
      group.recv(buffer(other), peer, 99).wait();
      sent.wait();
    }
    group.barrier().wait();
  }
  bool first_two_share() const {
    return GetParam().transport == Transport::shm || GetParam().transport == Transport::islands;
  }
};

TEST_P(Messages, OfAllLengthsArriveInTheirOrder) {
  on_ranks([&](int rank, Group group) {
    const std::vector<std::size_t> lengths = {kLongMessage, 0, 1,           16384,
                                              65536 * 2,    3, kLongMessage};
    const int next = (rank + 1) % group.size(), last = (rank + group.size() - 1) % group.size();
    std::vector<std::vector<float>> out, in;
    std::vector<Work> works;
    for (int round = 0; round < 3; ++round) {
      for (const auto length : lengths) {
        out.push_back(numbers(length, static_cast<float>(rank + round)));
        in.emplace_back(length, -1.0f);
      }
    }
    for (auto& data : out) works.push_back(group.send(buffer(data), next, 5));
    for (auto& data : in) works.push_back(group.recv(buffer(data), last, 5));
    for (const auto& work : works) work.wait();
    for (std::size_t i = 0; i < in.size(); ++i) {
      const auto first = static_cast<float>(last + static_cast<int>(i / lengths.size()));
      ASSERT_EQ(in[i], numbers(in[i].size(), first)) << "message " << i;
    }
  });
}

TEST_P(Messages, NobodyWaitsForAnotherTagsTurn) {
  on_ranks([&](int rank, Group group) {
    warm_up(group);
    if (rank > 1) return;
    auto first = numbers(kLongMessage, 1), second = numbers(kLongMessage, 2);
    std::vector<float> got(kLongMessage);
    if (rank == 0) {
      const auto one = group.send(buffer(first), 1, 1), other = group.send(buffer(second), 1, 2);
      other.wait();
      one.wait();
      return;
    }
    group.recv(buffer(got), 0, 2).wait();
    EXPECT_EQ(got, second);
    group.recv(buffer(got), 0, 1).wait();
    EXPECT_EQ(got, first);
  });
}

TEST_P(Messages, GoThroughMemoryWhereThereIsAny) {
  on_ranks([&](int rank, Group group) {
    warm_up(group);
    auto data = numbers(kLongMessage, 1);
    const auto before = group.bytes_sent();
    if (rank == 0) group.send(buffer(data), 1).wait();
    if (rank == 1) group.recv(buffer(data), 0).wait();
    if (rank != 0) return;
    const auto on_the_wire = group.bytes_sent() - before;
    if (first_two_share()) {
      EXPECT_LT(on_the_wire, data.size() / 4);
    } else {
      EXPECT_GE(on_the_wire, data.size() * 4);
    }
  });
}

TEST_P(Messages, OneThatNobodyTakesEndsAtItsDeadline) {
  if (kSanitized || size() > 2 || GetParam().transport != Transport::shm) {
    GTEST_SKIP() << "much memory, once";
  }
  on_ranks([&](int rank, Group group) {
    warm_up(group);
    // More than is kept for a receiver.
    std::vector<float> data(rank == 0 ? std::size_t{300} << 18 : 1);
    try {
      if (rank == 0)
        group.send(buffer(data), 1, 1, Deadline::after(std::chrono::seconds(1))).wait();
      if (rank == 1) group.recv(buffer(data), 0, 2, Deadline::after(kLong)).wait();
      ADD_FAILURE() << "rank " << rank;
    } catch (const Error& error) {
      if (rank == 1) return;  // that rank 0 is gone, or why
      EXPECT_EQ(error.code(), ErrorCode::Timeout) << error.what();
      EXPECT_THAT(error.what(), HasSubstr("rank 1"));
    }
  });
}

TEST_P(Messages, AReceiverThatLeavesHoldsNobodyUp) {
  on_ranks([&](int rank, Group group) {
    warm_up(group);
    if (rank == 1) return group.close(Deadline::after(kLong));
    if (rank > 1) return;
    auto data = numbers(kLongMessage, 1);
    std::vector<Work> works;
    for (int i = 0; i < 4; ++i) works.push_back(group.send(buffer(data), 1, 3));
    for (const auto& work : works) {
      try {
        work.wait();
      } catch (const Error& error) {
        EXPECT_EQ(error.code(), ErrorCode::PeerLost) << error.what();
      }
    }
  });
}

TEST_P(Messages, FromAnybodyAllArriveInEachSendersOrder) {
  constexpr int kEach = 6;
  on_ranks([&](int rank, Group group) {
    warm_up(group);
    for (const std::size_t length : {std::size_t{0}, std::size_t{3}, kLongMessage}) {
      std::vector<std::vector<float>> data;
      std::vector<Work> works;
      const int messages = rank == 0 ? kEach * (group.size() - 1) : kEach;
      for (int i = 0; i < messages; ++i) {
        data.push_back(numbers(length, static_cast<float>(rank == 0 ? -1 : 100 * rank + i)));
      }
      for (auto& one : data) {
        // A tag for each length: a fast sender is ahead of a slow one.
        works.push_back(rank == 0 ? group.recv_from_anybody(buffer(one), length)
                                  : group.send(buffer(one), 0, length));
      }
      std::vector<int> received(static_cast<std::size_t>(group.size()), 0);
      for (std::size_t i = 0; i < works.size(); ++i) {
        works[i].wait();
        if (rank != 0) {
          EXPECT_EQ(works[i].sender(), -1);
          continue;
        }
        const int sender = works[i].sender();
        ASSERT_GT(sender, 0);
        const int number = received[static_cast<std::size_t>(sender)]++;
        ASSERT_EQ(data[i], numbers(length, static_cast<float>(100 * sender + number)));
      }
      if (rank == 0) {
        EXPECT_EQ(received[1], kEach);
      }
    }
  });
}

TEST_P(Messages, FromAnybodyNobodyIsBlamedForSilence) {
  on_ranks([&](int rank, Group group) {
    std::vector<float> data(1);
    try {
      if (rank == 0) {
        group.recv_from_anybody(buffer(data), 4, Deadline::after(std::chrono::milliseconds(400)))
            .wait();
      } else {
        group.recv(buffer(data), 0, 4, Deadline::after(kLong)).wait();
      }
      ADD_FAILURE() << "rank " << rank;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::Timeout) << error.what();
      for (int other = 1; other < size(); ++other) {
        EXPECT_THAT(error.what(), HasSubstr("rank " + std::to_string(other)));
      }
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Worlds, Messages, ::testing::ValuesIn(worlds({2, 3})),
                         [](const auto& info) { return name_of(info.param); });

}  // namespace
}  // namespace bimetal::testing

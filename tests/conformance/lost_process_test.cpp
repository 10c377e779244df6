// Ranks as processes, one of which is killed or stopped by the operating system.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <vector>

#include "bimetal/base/error.h"
#include "support/process_ranks.h"
#include "support/temporary_folder.h"

namespace bimetal::testing {
namespace {

using comm::buffer;
using comm::Group;
using comm::ReduceOp;
using ::testing::HasSubstr;

using Tell = std::function<void(const std::string&)>;

Deadline patience() {
  return Deadline::after(std::chrono::seconds(60));
}

// All-reduces without end; the deadline of each is long unless given.
void reduce_for_ever(Group group, const Tell& tell, std::chrono::milliseconds timeout) {
  std::vector<float> data(1 << 20, 0);
  for (int round = 0;; ++round) {
    group.all_reduce(buffer(data), ReduceOp::avg, Deadline::after(timeout)).wait();
    if (round == 2) tell("running");
  }
}

void expect_all_running(ProcessRanks& ranks, int size) {
  for (int rank = 0; rank < size; ++rank) ranks.expect(rank, "running", patience());
}

// Shared memory is told of losses by the connections.
struct World {
  std::string name;
  comm::Transport transport;
  bool pairs = false;  // of ranks that share memory; the pairs meet over TCP
};

class LostProcess : public ::testing::TestWithParam<World> {
 protected:
  static std::vector<comm::GroupOptions> options(int size) {
    std::vector<comm::GroupOptions> all;
    for (int rank = 0; rank < size; ++rank) {
      const auto island = GetParam().pairs ? "host " + std::to_string(rank / 2) : "";
      all.push_back({.transport = GetParam().transport, .island = island});
    }
    return all;
  }
};

TEST_P(LostProcess, AKilledRankIsNamedByEveryOther) {
  for (const int victim : {0, 2}) {
    constexpr int kSize = 4;
    ProcessRanks ranks(
        [](int rank, Group group, const Tell& tell) {
          reduce_for_ever(std::move(group), tell, std::chrono::minutes(5));
        },
        options(kSize));
    expect_all_running(ranks, kSize);
    ranks.signal(victim, SIGKILL);
    for (int rank = 0; rank < kSize; ++rank) {
      if (rank == victim) continue;
      const auto outcome = ranks.outcome(rank, patience());
      EXPECT_EQ(outcome.error, ErrorCode::PeerLost) << outcome.message;
      EXPECT_EQ(outcome.blamed, victim) << outcome.message;
      EXPECT_THAT(outcome.message, HasSubstr("rank " + std::to_string(victim)));
    }
  }
}

// More ranks than are connected with each other. One waits for a rank that it is not connected
// with, and which waits for the one that dies; another only does after that.
TEST(LostInALargeWorld, AKilledRankIsNamedByEveryOther) {
  constexpr int kSize = 19, kVictim = 9;
  ProcessRanks ranks(kSize,
                     [](int rank, Group group, const Tell& tell) {
                       std::vector<float> data(4);
                       auto far = group.subgroup({0, 3, kVictim, 14});
                       group.barrier().wait();
                       tell("running");
                       if (rank == 3) group.recv(buffer(data), 0).wait();
                       if (rank == 0) group.recv(buffer(data), kVictim).wait();
                       if (rank == 14) far.recv_from_anybody(buffer(data)).wait();
                       if (rank != kVictim) group.barrier().wait();
                       group.recv(buffer(data), 0).wait();
                     },
                     {.transport = comm::Transport::tcp});
  expect_all_running(ranks, kSize);
  ranks.signal(kVictim, SIGKILL);
  for (int rank = 0; rank < kSize; ++rank) {
    if (rank == kVictim) continue;
    const auto outcome = ranks.outcome(rank, patience());
    EXPECT_EQ(outcome.error, ErrorCode::PeerLost) << rank << ": " << outcome.message;
    EXPECT_EQ(outcome.blamed, kVictim) << rank << ": " << outcome.message;
    EXPECT_THAT(outcome.message, HasSubstr("rank 9 ("));
  }
}

TEST_P(LostProcess, TheOthersWriteTheirLastCalls) {
  const test::TemporaryFolder folder;
  ::setenv("BIMETAL_FLIGHT_RECORDER", folder.path().c_str(), 1);
  ProcessRanks ranks(
      [](int rank, Group group, const Tell& tell) {
        reduce_for_ever(std::move(group), tell, std::chrono::minutes(5));
      },
      options(3));
  ::unsetenv("BIMETAL_FLIGHT_RECORDER");
  expect_all_running(ranks, 3);
  ranks.signal(1, SIGKILL);
  for (const int rank : {0, 2}) {
    EXPECT_EQ(ranks.outcome(rank, patience()).error, ErrorCode::PeerLost);
    const auto dump = test::contents_of(folder / ("flight_rank_" + std::to_string(rank) + ".json"));
    EXPECT_THAT(dump, HasSubstr("\"code\": \"peer_lost\", \"rank\": 1"));
    EXPECT_THAT(dump, HasSubstr("\"state\": \"completed\""));
  }
  EXPECT_EQ(test::names_in(folder.path()).size(), 2u);
}

TEST_P(LostProcess, AKilledRankIsMissedByRanksThatWaitForOthers) {
  ProcessRanks ranks(
      [](int rank, Group group, const Tell& tell) {
        std::vector<float> data(4);
        tell("running");
        // Rank 2 waits for rank 1 alone, which waits for rank 0.
        if (rank > 0) group.recv(buffer(data), rank - 1).wait();
        if (rank == 0) group.barrier().wait();
      },
      options(3));
  expect_all_running(ranks, 3);
  ranks.signal(0, SIGKILL);
  for (const int rank : {1, 2}) {
    const auto outcome = ranks.outcome(rank, patience());
    EXPECT_EQ(outcome.error, ErrorCode::PeerLost) << outcome.message;
    EXPECT_EQ(outcome.blamed, 0) << outcome.message;
  }
}

TEST_P(LostProcess, AStoppedRankEndsInATimeoutThatNamesIt) {
  constexpr int kSize = 4, kVictim = 1;
  ProcessRanks ranks(
      [](int rank, Group group, const Tell& tell) {
        std::vector<float> data(1 << 20, 0);
        group.all_reduce(buffer(data)).wait();
        tell("running");
        // Longer than a call in good health takes on a busy machine.
        for (;;) {
          std::vector<float> number(8, 0);
          group.all_reduce(buffer(number), ReduceOp::sum, Deadline::after(std::chrono::seconds(3)))
              .wait();
        }
      },
      options(kSize));
  expect_all_running(ranks, kSize);
  ranks.signal(kVictim, SIGSTOP);
  for (int rank = 0; rank < kSize; ++rank) {
    if (rank == kVictim) continue;
    const auto outcome = ranks.outcome(rank, patience());
    EXPECT_EQ(outcome.error, ErrorCode::Timeout) << outcome.message;
    EXPECT_THAT(outcome.message, HasSubstr("rank 1 ("));
    EXPECT_THAT(outcome.message, HasSubstr("all_reduce(sum) of 8 float32"));
  }
  // Woken up, it finds out what the others have decided.
  ranks.signal(kVictim, SIGCONT);
  const auto outcome = ranks.outcome(kVictim, patience());
  EXPECT_TRUE(outcome.error == ErrorCode::Timeout || outcome.error == ErrorCode::PeerLost)
      << outcome.message;
}

// The stopped one holds whole messages of the others in its sockets: their memory is given back.
TEST_P(LostProcess, AStoppedReceiverOfLongMessages) {
  ProcessRanks ranks(
      [](int rank, Group group, const Tell& tell) {
        std::vector<float> data(32 << 20, 0);
        group.barrier().wait();
        tell("running");
        if (rank == 1) {
          group.recv(buffer(data), 0, 7).wait();  // another tag than is sent: only stops
        } else {
          std::vector<float> token(1);
          group.recv(buffer(token), 1, 8, Deadline::after(std::chrono::milliseconds(500)));
          group.broadcast(buffer(data), 0, Deadline::after(std::chrono::seconds(2))).wait();
        }
      },
      options(2));
  expect_all_running(ranks, 2);
  ranks.signal(1, SIGSTOP);
  const auto outcome = ranks.outcome(0, patience());
  EXPECT_EQ(outcome.error, ErrorCode::Timeout) << outcome.message;
  EXPECT_EQ(outcome.blamed, 1) << outcome.message;
}

TEST_P(LostProcess, ARankThatEndsInGoodOrderIsNoLoss) {
  ProcessRanks ranks(
      [](int rank, Group group, const Tell& tell) {
        std::vector<float> data(100000, 1);
        group.broadcast(buffer(data), 0).wait();
        if (rank == 0) return;  // its part is done; the others go on without it
        const auto pair_tag = 3;
        if (rank == 1) group.send(buffer(data), 2, pair_tag).wait();
        if (rank == 2) group.recv(buffer(data), 1, pair_tag).wait();
      },
      options(3));
  for (int rank = 0; rank < 3; ++rank) {
    const auto outcome = ranks.outcome(rank, patience());
    EXPECT_EQ(outcome.error, std::nullopt) << outcome.message;
  }
}

// However its ranks end, a job leaves no shared memory behind.
TEST_P(LostProcess, NothingIsLeftOfKilledRanks) {
  const std::filesystem::path folder = "/dev/shm";
  if (!std::filesystem::exists(folder)) GTEST_SKIP() << "names of shared memory cannot be listed";
  const auto names = [&] {
    return std::ranges::count_if(
        std::filesystem::directory_iterator(folder),
        [](const auto& entry) { return entry.path().filename().string().starts_with("bimetal"); });
  };
  const auto before = names();
  ProcessRanks ranks(
      [](int rank, Group group, const Tell& tell) {
        reduce_for_ever(std::move(group), tell, std::chrono::minutes(5));
      },
      options(3));
  expect_all_running(ranks, 3);
  EXPECT_EQ(names(), before);
  for (const int rank : {0, 1, 2}) ranks.signal(rank, SIGKILL);
  for (const int rank : {0, 1, 2}) EXPECT_THROW(ranks.outcome(rank, patience()), Error);
  EXPECT_EQ(names(), before);
}

INSTANTIATE_TEST_SUITE_P(Transports, LostProcess,
                         ::testing::Values(World{"tcp", comm::Transport::tcp},
                                           World{"shm", comm::Transport::shm},
                                           World{"pairs", comm::Transport::automatic, true}),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace bimetal::testing

// The keeping of time within a team: steps, slots, sleep, and calls that differ.

#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <thread>

#include "bimetal/base/deadline.h"
#include "bimetal/base/error.h"
#include "bimetal/comm/algorithms/ring.h"
#include "bimetal/comm/fabric.h"
#include "bimetal/comm/shm/team.h"

namespace bimetal::comm {
namespace {

// Gives up in the end; counts how often it is asked.
class Guard : public WaitGuard {
 public:
  std::optional<Failure> still_waiting(int rank) override {
    ++asked;
    if (left) return left;
    if (deadline.expired()) throw Error(ErrorCode::Timeout, "waited for too long", rank);
    return std::nullopt;
  }
  Deadline deadline = Deadline::after(std::chrono::seconds(60));
  std::optional<Failure> left;
  std::atomic<int> asked = 0;
};

std::vector<std::unique_ptr<ShmTeam>> make_teams(int size) {
  std::vector<net::SharedMemory> made;
  std::vector<int> world_ranks;
  for (int rank = 0; rank < size; ++rank) {
    made.push_back(net::SharedMemory::create(ShmTeam::segment_bytes()));
    world_ranks.push_back(10 + rank);
  }
  std::vector<std::unique_ptr<ShmTeam>> teams;
  for (int rank = 0; rank < size; ++rank) {
    std::vector<net::SharedMemory> segments;
    for (const auto& segment : made) {
      segments.push_back(net::SharedMemory::open(segment.address(), ShmTeam::segment_bytes()));
    }
    teams.push_back(std::make_unique<ShmTeam>(3, rank, world_ranks, std::move(segments)));
  }
  return teams;
}

Call reduction_of(std::uint64_t count, std::uint64_t sequence = 0) {
  return {.operation = Operation::all_reduce,
          .dtype = DType::float32,
          .reduce_op = ReduceOp::sum,
          .count = count,
          .sequence = sequence};
}

TEST(ShmTeam, ASleeperIsWokenByTheStepItWaitsFor) {
  auto teams = make_teams(2);
  Guard guard;
  teams[0]->begin(reduction_of(5), guard);
  const auto step = teams[0]->publish();
  std::atomic<bool> through = false;
  std::thread waiting([&] {
    teams[0]->wait_for(1, step, guard);
    through = true;
  });
  while (guard.asked == 0) std::this_thread::yield();  // it is going to sleep
  EXPECT_FALSE(through);
  Guard others;
  teams[1]->begin(reduction_of(5), others);
  teams[1]->publish();
  waiting.join();
  EXPECT_EQ(others.asked, 0);
}

TEST(ShmTeam, ACallThatNobodyWaitedInIsComparedInTheNext) {
  auto teams = make_teams(2);
  Guard guard;
  teams[0]->begin(reduction_of(10, 0), guard);
  teams[0]->publish();
  teams[1]->begin(reduction_of(11, 0), guard);
  teams[1]->publish();
  teams[0]->begin(reduction_of(5, 1), guard);
  const auto step = teams[0]->publish();
  teams[1]->begin(reduction_of(5, 1), guard);
  teams[1]->publish();
  EXPECT_THROW(teams[0]->wait_for(1, step, guard), Error);
}

TEST(ShmTeam, ARankThatHasLeftIsLostOnlyIfItNeverCame) {
  auto teams = make_teams(2);
  Guard guard;
  guard.left = Failure{ErrorCode::PeerLost, "gone", 11};
  teams[0]->begin(reduction_of(1), guard);
  const auto step = teams[0]->publish();
  EXPECT_THROW(teams[0]->wait_for(1, step, guard), Error);
  teams[1]->begin(reduction_of(1), guard);
  teams[1]->publish();
  EXPECT_NO_THROW(teams[0]->wait_for(1, step, guard));
}

TEST(ShmTeam, ASlotIsKeptUntilItHasBeenRead) {
  auto teams = make_teams(2);
  Guard guard;
  for (auto& team : teams) team->begin(reduction_of(1), guard);
  for (std::size_t k = 0; k < Segment::kSlots; ++k) {
    const auto slot = teams[0]->claim_slot(guard);
    teams[0]->publish();
    teams[0]->release_slot(slot);
  }
  // Rank 1 has read nothing yet.
  guard.deadline = Deadline::after(std::chrono::milliseconds(30));
  EXPECT_THROW(teams[0]->claim_slot(guard), Error);
}

TEST(ShmTeam, ARankIsNoMoreThanAFewCallsAhead) {
  auto teams = make_teams(2);
  Guard guard;
  guard.deadline = Deadline::after(std::chrono::milliseconds(30));
  const auto run_ahead = [&] {
    for (std::uint64_t call = 0; call < 100; ++call) {
      teams[0]->begin(reduction_of(1, call), guard);
      teams[0]->publish();
    }
  };
  EXPECT_THROW(run_ahead(), Error);
}

// How data are cut into lanes and chunks.
TEST(Lanes, CoverEveryByteOnce) {
  for (const std::size_t bytes : {0ul, 4ul, 64ul, 100ul, 4096ul, 1000003ul, 64ul << 20}) {
    for (const int number : {1, 2, 3, 7, 64}) {
      const Lanes lanes{bytes, number};
      std::size_t end = 0;
      for (int j = 0; j < number; ++j) {
        const Range lane = lanes.lane(j);
        EXPECT_EQ(lane.begin, end);
        EXPECT_LE(lane.bytes, lanes.length());
        end += lane.bytes;
      }
      EXPECT_EQ(end, bytes);
      EXPECT_GE(lanes.chunks() * lanes.chunk_bytes(), lanes.length());
    }
  }
}

TEST(Lanes, AChunkOfEveryLaneFitsOneSlot) {
  for (int number = 1; number <= kMaxTeam; ++number) {
    const Lanes lanes{std::size_t{1} << 30, number};
    EXPECT_GT(lanes.chunk_bytes(), 0u);
    EXPECT_EQ(lanes.chunk_bytes() % kLine, 0u);
    EXPECT_LE(lanes.chunk_bytes() * static_cast<std::size_t>(number), ShmTeam::slot_bytes());
  }
}

// All ranks of a team take the same steps in each call, and at least one.
TEST(Lanes, NothingIsStillAChunk) {
  EXPECT_EQ((Lanes{0, 3}.chunks()), 1u);
}

TEST(Chain, IsForLongMessagesOfThreeRanksAndMore) {
  EXPECT_FALSE(chain_suits(std::size_t{1} << 30, 2));
  EXPECT_FALSE(chain_suits(1000, 3));
  EXPECT_TRUE(chain_suits(std::size_t{1} << 20, 3));
  EXPECT_FALSE(chain_suits(std::size_t{1} << 20, 100));
}

TEST(Island, TheVariableFillsWhatTheProgramLeavesOpen) {
  unsetenv("BIMETAL_ISLAND");
  EXPECT_EQ(island_for(""), "");
  setenv("BIMETAL_ISLAND", "left", 1);
  EXPECT_EQ(island_for(""), "left");
  EXPECT_EQ(island_for("right"), "right");
  unsetenv("BIMETAL_ISLAND");
}

}  // namespace
}  // namespace bimetal::comm

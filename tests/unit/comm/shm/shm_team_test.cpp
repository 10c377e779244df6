// The keeping of time within a team: steps, slots, sleep, and calls that differ.
#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "bimetal/base/deadline.h"
#include "bimetal/base/error.h"
#include "bimetal/comm/shm/team.h"
#include "support/errors.h"

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

TEST(ShmTeam, CallsThatDifferAreNamedOnBothSides) {
  auto teams = make_teams(2);
  Guard guard;
  teams[0]->begin(reduction_of(10, 7), guard);
  teams[1]->begin(reduction_of(12, 7), guard);
  const auto step = teams[0]->publish();
  teams[1]->publish();
  for (const int rank : {0, 1}) {
    expect_error(ErrorCode::CallMismatch,
                 {"rank 10 called all_reduce(sum) of 10 float32", "as call 7", "rank 11 called",
                  "of 12 float32"},
                 [&] { teams[rank]->wait_for(1 - rank, step, guard); });
  }
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

TEST(ShmTeam, AnAbsentRankEndsTheWaitByItsGuard) {
  auto teams = make_teams(2);
  Guard guard;
  guard.deadline = Deadline::after(std::chrono::milliseconds(30));
  teams[0]->begin(reduction_of(1), guard);
  const auto step = teams[0]->publish();
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

}  // namespace
}  // namespace bimetal::comm

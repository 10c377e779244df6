#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <thread>

#include "bimetal/base/error.h"
#include "bimetal/comm/exchange.h"
#include "support/errors.h"
#include "support/thread_ranks.h"

namespace bimetal::comm {
namespace {

using namespace std::chrono_literals;

constexpr auto kDoing = "something long was going on";

TEST(DoWatched, WaitsForWorkThatTakesManyTimesTheTimeout) {
  std::atomic<int> through = 0;
  bimetal::testing::run_ranks(3, [&](int rank, Group group) {
    do_watched(group, 400ms, kDoing, [&] {
      if (rank == 1) std::this_thread::sleep_for(1500ms);
      ++through;
    });
    EXPECT_EQ(through, 3);
  });
}

TEST(DoWatched, LeavesTheGroupToTheWork) {
  bimetal::testing::run_ranks(3, [](int rank, Group group) {
    std::vector<std::int64_t> sum = {rank};
    do_watched(group, 10s, kDoing, [&] { group.all_reduce(buffer(std::span(sum))).wait(); });
    group.all_reduce(buffer(std::span(sum))).wait();
    EXPECT_EQ(sum, (std::vector<std::int64_t>{9}));
  });
}

TEST(DoWatched, ARankOfWhichNothingIsHeardIsNamedByAll) {
  for (const int silent : {0, 2}) {
    std::atomic<int> found = 0;
    bimetal::testing::run_ranks(3, [&](int rank, Group group) {
      if (rank == silent) {
        while (found < 2) std::this_thread::sleep_for(10ms);
        return;
      }
      EXPECT_EQ(expect_error(ErrorCode::Timeout, {"something long was going on"},
                             [&] {
                               do_watched(group, 400ms, kDoing,
                                          [&] { group.barrier(Deadline::after(60s)).wait(); });
                             })
                    .rank(),
                silent);
      ++found;
    });
  }
}

/// As a checkpoint does that is written beside the steps.
TEST(DoWatched, WorkThatWaitsForAnotherGroupIsCalledOff) {
  std::atomic<bool> found = false;
  bimetal::testing::run_ranks(2, [&](int rank, Group group) {
    auto other = group.subgroup({0, 1});
    if (rank == 1) {
      while (!found) std::this_thread::sleep_for(10ms);
      return;
    }
    expect_error(ErrorCode::Timeout, {"something long was going on"}, [&] {
      do_watched(
          group, 400ms, kDoing, [&] { other.barrier(Deadline::after(60s)).wait(); },
          [other]() mutable { other.abort("it is called off"); });
    });
    found = true;
  });
}

TEST(DoWatched, OneThatGivesUpEndsNoWatchOfTheOthers) {
  std::atomic<int> found = 0;
  bimetal::testing::run_ranks(4, [&](int rank, Group group) {
    const auto work = [&] {
      if (rank == 1) throw Error(ErrorCode::System, "no room");
      std::vector<std::int64_t> never(1);
      group.recv(buffer(std::span(never)), 3, 7, Deadline::after(60s)).wait();
    };
    if (rank == 1) {
      EXPECT_THROW(do_watched(group, 400ms, kDoing, work), Error);
    }
    if (rank == 0 || rank == 2) {
      try {
        do_watched(group, 400ms, kDoing, work);
        ADD_FAILURE() << "not missed";
      } catch (const Error& error) {
        EXPECT_EQ(error.rank(), 3) << error.what();
      }
      ++found;
    }
    while (found < 2) std::this_thread::sleep_for(10ms);  // rank 3 does nothing else
  });
}

TEST(DoWatched, WhatTheWorkThrowsComesOutAndTheOthersGoOn) {
  for (const int failing : {0, 1}) {
    bimetal::testing::run_ranks(3, [&](int rank, Group group) {
      const auto work = [&] {
        if (rank == failing) throw Error(ErrorCode::System, "no room");
      };
      if (rank == failing) {
        EXPECT_THROW(do_watched(group, 10s, kDoing, work), Error);
      } else {
        do_watched(group, 10s, kDoing, work);
      }
      group.barrier().wait();
    });
  }
}

}  // namespace
}  // namespace bimetal::comm

#include "bimetal/progress/together.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <thread>

#include "bimetal/progress/progress.h"
#include "support/thread_ranks.h"

namespace bimetal::progress {
namespace {

using std::chrono::milliseconds;
using ::testing::HasSubstr;

struct Watcher : Observer {
  std::vector<DataProgress> seen;
  void on_data(const DataProgress& progress) override { seen.push_back(progress); }
};

TogetherOptions options() {
  return {.what = "reading", .timeout = std::chrono::seconds(20)};
}

TEST(Together, AllReturnWhenAllAreDone) {
  std::atomic<int> done = 0;
  Watcher watcher;
  bimetal::testing::run_ranks(3, [&](int rank, comm::Group group) {
    Task task;
    if (rank > 0) {
      task = [&done, rank](Meter& meter) {
        meter.expect(200);
        meter.advance(100);
        std::this_thread::sleep_for(milliseconds(400 * rank));
        meter.advance(100);
        ++done;
      };
    }
    Observer nobody;
    run_together(group, task, options(), rank == 0 ? watcher : nobody);
    EXPECT_EQ(done, 2) << "rank " << rank << " went on too early";
  });
  ASSERT_FALSE(watcher.seen.empty()) << "the idle rank is told as well";
  EXPECT_EQ(watcher.seen.front().what, "reading");
  EXPECT_NEAR(watcher.seen.front().part, 0.5, 0.26);
  EXPECT_GT(watcher.seen.front().seconds_left, 0);
}

TEST(Together, AnErrorIsThrownOnItsRank) {
  try {
    bimetal::testing::run_ranks(2, [&](int rank, comm::Group group) {
      Task task;
      if (rank == 1) {
        task = [](Meter&) { throw Error(ErrorCode::System, "disk full"); };
      }
      Observer nobody;
      run_together(group, task, options(), nobody);
    });
    FAIL();
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(), "disk full");
  }
}

TEST(Together, ATaskThatStandsStillIsFoundOut) {
  auto quick = options();
  quick.timeout = milliseconds(300);
  const auto ended = std::make_shared<std::atomic<bool>>(false);
  try {
    bimetal::testing::run_ranks(1, [&](int, comm::Group group) {
      const Task stuck = [ended](Meter& meter) {
        while (!*ended) {
          std::this_thread::sleep_for(milliseconds(10));
          try {
            meter.require_going();
          } catch (const Error&) {
            *ended = true;  // told to stop
          }
        }
      };
      Observer nobody;
      run_together(group, stuck, quick, nobody);
    });
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::Timeout);
    EXPECT_EQ(error.rank(), 0);
    EXPECT_THAT(error.what(), HasSubstr("reading: nothing has come for 0.3 s"));
  }
  EXPECT_TRUE(*ended);
}

TEST(Together, AnInterruptEndsAllRanksAlike) {
  std::atomic<int> interrupted = 0, cancelled = 0;
  bimetal::testing::run_ranks(3, [&](int rank, comm::Group group) {
    auto mine = options();
    mine.interrupt_requested = [rank] { return rank == 2; };
    mine.cancel = [&] { ++cancelled; };
    Task task;
    if (rank == 0) {
      task = [](Meter& meter) {
        for (;;) {
          meter.advance(1);
          std::this_thread::sleep_for(milliseconds(5));
        }
      };
    }
    Observer nobody;
    try {
      run_together(group, task, mine, nobody);
    } catch (const Interrupted&) {
      ++interrupted;
    }
  });
  EXPECT_EQ(interrupted, 3);
  EXPECT_EQ(cancelled, 3);
}

TEST(ProgressLine, ShowsWhoHasAShareWhereManyHaveComeAndGone) {
  Progress progress;
  progress.samples_per_s = 300;
  progress.counts = "images";
  progress.efficiency = 0.5;
  progress.shares = {0, 0, 0, 0, 0, 0, 40, 24};
  progress.rank_samples_per_s = {9, 9, 9, 9, 9, 9, 200, 100};
  EXPECT_EQ(rate_line(progress), "efficiency 50 %  300 images/s (200 + 100)  shares 40 : 24");
}

}  // namespace
}  // namespace bimetal::progress

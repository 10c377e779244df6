#include "bimetal/comm/work.h"

#include <gtest/gtest.h>

#include <chrono>
#include <thread>
#include <vector>

#include "bimetal/comm/failure.h"

namespace bimetal::comm {
namespace {

const Failure kLost{ErrorCode::PeerLost, "rank 3 is gone", 3};

void expect_lost(const std::exception_ptr& error) {
  ASSERT_TRUE(error);
  try {
    std::rethrow_exception(error);
  } catch (const Error& lost) {
    EXPECT_EQ(lost.code(), ErrorCode::PeerLost);
    EXPECT_EQ(lost.rank(), 3);
    EXPECT_STREQ(lost.what(), "rank 3 is gone");
  }
}

TEST(Work, ThrowsItsErrorAtEveryWait) {
  const auto state = std::make_shared<Work::State>();
  const Work work(state);
  state->finish(kLost);
  EXPECT_THROW(work.wait(), Error);
  EXPECT_THROW(work.wait(), Error);
  expect_lost(work.error());
}

TEST(Work, CallbacksGetTheErrorOnce) {
  const auto state = std::make_shared<Work::State>();
  const Work work(state);
  int calls = 0;
  const auto count = [&](const std::exception_ptr& error) {
    expect_lost(error);
    ++calls;
  };
  work.on_done(count);
  work.on_done(count);
  EXPECT_EQ(calls, 0);
  state->finish(kLost);
  EXPECT_EQ(calls, 2);
  work.on_done(count);
  EXPECT_EQ(calls, 3);
}

TEST(Work, TheFirstEndCounts) {
  const auto state = std::make_shared<Work::State>();
  state->finish(kLost);
  state->finish({});
  expect_lost(Work(state).error());
}

TEST(Work, ACallbackMayWaitForItsOwnWork) {
  const auto state = std::make_shared<Work::State>();
  const Work work(state);
  bool waited = false;
  work.on_done([&](const std::exception_ptr&) {
    work.wait();
    waited = true;
  });
  state->finish({});
  EXPECT_TRUE(waited);
}

// A caller may free its buffers afterwards, whatever the outcome of the first.
TEST(WaitForAll, OutlastsAnErrorAndThrowsTheFirst) {
  const auto lost = std::make_shared<Work::State>(), late = std::make_shared<Work::State>();
  const std::vector<Work> works = {Work(), Work(lost), Work(late)};
  lost->finish(kLost);
  bool ended = false;
  std::thread finisher([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    ended = true;
    late->finish(Failure{ErrorCode::Timeout, "too late", 4});
  });
  try {
    wait_for_all(works);
    ADD_FAILURE();
  } catch (const Error&) {
    EXPECT_TRUE(ended);
    expect_lost(std::current_exception());
  }
  finisher.join();
  wait_for_all(std::vector<Work>{Work(), Work()});
}

}  // namespace
}  // namespace bimetal::comm

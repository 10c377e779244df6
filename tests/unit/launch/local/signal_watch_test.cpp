#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <string>
#include <thread>

#include "bimetal/base/error.h"
#include "bimetal/launch/local/pipe.h"
#include "bimetal/launch/local/process.h"
#include "bimetal/launch/local/status_pipe.h"

namespace bimetal::launch {
namespace {

TEST(SignalWatch, CountsRequestsToStop) {
  SignalWatch watch;
  EXPECT_EQ(watch.stop_requests(), 0);
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) ::raise(signal);
  EXPECT_EQ(watch.stop_requests(), 3);
}

TEST(SignalWatch, EndsOfChildrenAreNoRequests) {
  SignalWatch watch;
  ::raise(SIGCHLD);
  EXPECT_EQ(watch.stop_requests(), 0);
}

TEST(SignalWatch, ASignalEndsThePause) {
  SignalWatch watch;
  ::raise(SIGCHLD);
  const auto begin = std::chrono::steady_clock::now();
  watch.pause(std::chrono::minutes(10));
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::minutes(5));
}

TEST(SignalWatch, AHangupThatIsIgnoredStaysIgnored) {
  ::signal(SIGHUP, SIG_IGN);
  {
    SignalWatch watch;
    ::raise(SIGHUP);
    EXPECT_EQ(watch.stop_requests(), 0);
  }
  ::signal(SIGHUP, SIG_DFL);
}

TEST(SignalWatch, PutsBackWhatWasThere) {
  struct sigaction before {
  }, after{};
  ::sigaction(SIGINT, nullptr, &before);
  { SignalWatch watch; }
  ::sigaction(SIGINT, nullptr, &after);
  EXPECT_EQ(before.sa_handler, after.sa_handler);
  SignalWatch again;
  EXPECT_EQ(again.stop_requests(), 0);
}

TEST(SignalWatch, ThereIsOneAtATime) {
  SignalWatch watch;
  EXPECT_THROW(SignalWatch(), Error);
  ::raise(SIGINT);
  EXPECT_EQ(watch.stop_requests(), 1);
}

[[noreturn]] void live_for_a_while(bool cut) {
  auto pipe = Pipe::create();
  ::setenv(kLifelineVariable, std::to_string(::dup(pipe.read.number())).c_str(), 1);
  watch_lifeline(9);
  if (cut) pipe.write.close();
  std::this_thread::sleep_for(std::chrono::milliseconds(cut ? 60'000 : 300));
  ::_exit(0);
}

TEST(Lifeline, EndsTheProcessWhenItIsCut) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(live_for_a_while(true), ::testing::ExitedWithCode(9), "");
}

TEST(Lifeline, LeavesTheProcessAloneWhileItHolds) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(live_for_a_while(false), ::testing::ExitedWithCode(0), "");
}

TEST(Lifeline, IsNotNeeded) {
  watch_lifeline(9);
}

TEST(StopRequest, TheFirstSignalOnlyAsks) {
  for (const int signal : {SIGINT, SIGTERM}) {
    const StopRequest stop;
    EXPECT_FALSE(stop.requested());
    ::raise(signal);
    EXPECT_TRUE(stop.requested());
  }
}

TEST(StopRequest, TheSameKeystrokeTwiceIsOneRequest) {
  const StopRequest stop;
  ::raise(SIGINT);
  ::raise(SIGINT);
  EXPECT_TRUE(stop.requested());
}

[[noreturn]] void be_asked_twice() {
  const StopRequest stop;
  ::raise(SIGINT);
  std::this_thread::sleep_for(std::chrono::milliseconds(1200));
  ::raise(SIGINT);
  ::_exit(0);
}

TEST(StopRequest, ALaterSignalEndsTheProcess) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(be_asked_twice(), ::testing::ExitedWithCode(kInterruptedStatus), "");
}

}  // namespace
}  // namespace bimetal::launch

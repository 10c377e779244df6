#include "bimetal/launch/local/signal_watch.h"

#include <gtest/gtest.h>
#include <signal.h>

#include <chrono>

#include "bimetal/base/error.h"

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

}  // namespace
}  // namespace bimetal::launch

#include "bimetal/launch/local/stop_request.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <thread>

namespace bimetal::launch {
namespace {

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

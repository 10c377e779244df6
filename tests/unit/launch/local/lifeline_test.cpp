#include "bimetal/launch/local/status_pipe.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <string>
#include <thread>

#include "bimetal/launch/local/pipe.h"

namespace bimetal::launch {
namespace {

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

}  // namespace
}  // namespace bimetal::launch

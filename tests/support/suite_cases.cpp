// The suites that test_suites.py runs: suites that pass, and one whose cases each end in another
// way.

#include <gtest/gtest.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>

namespace {

int left_behind = 0;

TEST(Good, LeavesSomething) {
  EXPECT_EQ(++left_behind, 1);
}
TEST(Good, FindsNothing) {
  EXPECT_EQ(++left_behind, 1);
}
TEST(Good, LeavesAsAProcessDoes) {
  EXPECT_EXIT(std::exit(3), testing::ExitedWithCode(3), "");
}

class Counted : public testing::TestWithParam<int> {};
TEST_P(Counted, Passes) {
  EXPECT_GT(GetParam(), 0);
}
INSTANTIATE_TEST_SUITE_P(Many, Counted, testing::Range(1, 31));

TEST(Mixed, Passes) {}
TEST(Mixed, Fails) {
  EXPECT_EQ(1, 2) << "as it is to";
}
TEST(Mixed, Skips) {
  GTEST_SKIP() << "nothing to do here";
}
TEST(Mixed, Crashes) {
  std::raise(SIGKILL);
}
TEST(Mixed, Hangs) {
  while (true) ::pause();
}
TEST(Mixed, Leaves) {
  std::exit(0);
}

TEST(Early, Passes) {}
TEST(Early, Leaves) {
  std::exit(0);
}
TEST(Early, IsNotReached) {}

// The end of the process, after a case.
TEST(AtExit, Crashes) {
  std::atexit([] { std::raise(SIGKILL); });
}
TEST(AtExit, Hangs) {
  std::atexit([] {
    while (true) ::pause();
  });
}
TEST(AtExit, Passes) {}

TEST(Long, Hangs) {
  while (true) ::pause();
}
TEST(Long, LeavesAProcess) {
  ASSERT_EQ(std::system("sleep 90 &"), 0);
}

bool tried_before() {
  return std::system("test -e tried || { touch tried; exit 1; }") == 0;
}

TEST(Once, PassesTheSecondTime) {
  ASSERT_TRUE(tried_before());
}

TEST(Skipping, FailsTheFirstTime) {
  ASSERT_TRUE(tried_before());
  GTEST_SKIP() << "at the second try";
}

TEST(Breaking, PassesTheSecondTime) {
  if (!tried_before()) std::raise(SIGKILL);
}
TEST(Breaking, Passes) {}
TEST(Breaking, Skips) {
  GTEST_SKIP() << "always";
}

}  // namespace

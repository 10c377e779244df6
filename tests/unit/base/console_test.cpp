// A real pseudo-terminal, as mpirun and people's terminals have it.

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>

#include "bimetal/base/log.h"
#include "bimetal/base/typed_text.h"
#include "support/environment.h"

namespace bimetal {
namespace {

class ConsoleTest : public testing::Test {
 protected:
  void SetUp() override {
    for (const char* name : {"OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK", "NO_COLOR"}) {
      unsetenv(name);
    }
    controller_ = posix_openpt(O_RDWR | O_NOCTTY);
    ASSERT_EQ(grantpt(controller_), 0);
    ASSERT_EQ(unlockpt(controller_), 0);
    terminal_ = open(ptsname(controller_), O_RDWR | O_NOCTTY);
    ASSERT_GE(terminal_, 0);
  }

  void TearDown() override {
    close(terminal_);
    close(controller_);
  }

  int controller_ = -1, terminal_ = -1;
  test::Environment kind_{"TERM", "xterm"};
};

TEST_F(ConsoleTest, LinesAreRewrittenOnATerminal) {
  EXPECT_TRUE(is_capable_terminal(terminal_));
  EXPECT_TRUE(may_rewrite(terminal_));
}

TEST_F(ConsoleTest, AFileIsNoTerminal) {
  const int file = open("/dev/null", O_WRONLY);
  EXPECT_FALSE(is_capable_terminal(file));
  EXPECT_FALSE(may_rewrite(file));
  close(file);
}

TEST_F(ConsoleTest, ATerminalMustKnowHow) {
  for (const char* kind : {"dumb", ""}) {
    const test::Environment term("TERM", kind);
    EXPECT_FALSE(is_capable_terminal(terminal_)) << kind;
    EXPECT_FALSE(may_rewrite(terminal_)) << kind;
  }
}

TEST_F(ConsoleTest, WhoWantsNoColourWantsNoOtherCodesEither) {
  {
    const test::Environment colour("NO_COLOR", "1");
    EXPECT_TRUE(is_capable_terminal(terminal_));
    EXPECT_FALSE(may_rewrite(terminal_));
  }
  const test::Environment colour("NO_COLOR", "");  // counts as not set
  EXPECT_TRUE(may_rewrite(terminal_));
}

TEST_F(ConsoleTest, ThePseudoTerminalOfMpirunIsLookedAtByNobody) {
  for (const char* name : {"OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK"}) {
    const test::Environment rank(name, "0");
    EXPECT_FALSE(may_rewrite(terminal_)) << name;
  }
  EXPECT_TRUE(may_rewrite(terminal_));
}

TEST(CountedTest, OneIsNoMany) {
  EXPECT_EQ(counted(0, "worker"), "0 workers");
  EXPECT_EQ(counted(1, "worker"), "1 worker");
  EXPECT_EQ(counted(2, "worker"), "2 workers");
  EXPECT_EQ(counted(1, "batch", "batches"), "1 batch");
  EXPECT_EQ(counted(3, "batch", "batches"), "3 batches");
}

}  // namespace
}  // namespace bimetal

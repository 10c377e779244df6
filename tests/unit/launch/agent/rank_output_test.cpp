#include "bimetal/launch/agent/rank_output.h"

#include <gtest/gtest.h>

namespace bimetal::launch {
namespace {

TEST(RankOutput, ShowsWholeLinesWithTheirRank) {
  RankOutput output(true);
  EXPECT_EQ(output.take(3, OutputStream::out, "epo"), "");
  EXPECT_EQ(output.take(1, OutputStream::out, "one\ntwo\nth"), "[1] one\n[1] two\n");
  EXPECT_EQ(output.take(3, OutputStream::out, "ch 1\n"), "[3] epoch 1\n");
  EXPECT_EQ(output.take(1, OutputStream::out, "ree\n"), "[1] three\n");
}

TEST(RankOutput, KeepsTheTwoStreamsApart) {
  RankOutput output(true);
  EXPECT_EQ(output.take(0, OutputStream::out, "half"), "");
  EXPECT_EQ(output.take(0, OutputStream::errors, "warning\n"), "[0] warning\n");
  EXPECT_EQ(output.rest_of(0, OutputStream::out), "[0] half\n");
  EXPECT_EQ(output.rest_of(0, OutputStream::errors), "");
}

TEST(RankOutput, MayLeaveTheRankOut) {
  RankOutput output(false);
  EXPECT_EQ(output.take(0, OutputStream::out, "a\nb\n"), "a\nb\n");
}

TEST(RankOutput, ALineEndMayHaveAReturn) {
  RankOutput output(true);
  EXPECT_EQ(output.take(0, OutputStream::out, "one\r\ntwo\r"), "[0] one\n");
  EXPECT_EQ(output.take(0, OutputStream::out, "\n"), "[0] two\n");
}

TEST(RankOutput, NotesWhosePythonMissesAModule) {
  RankOutput output(true);
  output.take(0, OutputStream::errors, "Traceback (most recent call last):\nModuleNotFound");
  output.take(0, OutputStream::errors, "Error: No module named 'x'\n");
  output.take(1, OutputStream::out, "ModuleNotFoundError: is a word of a program's output\n");
  EXPECT_TRUE(output.misses_module(0));
  EXPECT_FALSE(output.misses_module(1));
  EXPECT_FALSE(output.misses_module(2));
}

TEST(RankOutput, AProgressBarBecomesOneLineASecond) {
  RankOutput output(true);
  const auto first = output.take(0, OutputStream::errors, "\r1%\r2%\r3%\r4%");
  EXPECT_EQ(first, "[0] 1%\n");
  EXPECT_EQ(output.take(0, OutputStream::errors, "\r100%\n"), "[0] 100%\n");
}

TEST(RankOutput, ALineWithoutEndIsShownInPieces) {
  RankOutput output(true);
  const auto shown = output.take(0, OutputStream::out, std::string(3 << 20, 'x'));
  EXPECT_GT(shown.size(), std::size_t{2} << 20);
}

}  // namespace
}  // namespace bimetal::launch

#include "bimetal/launch/agent/agent_message.h"

#include <gtest/gtest.h>

#include "bimetal/launch/agent/rank_output.h"

namespace bimetal::launch {
namespace {

TEST(AgentMessage, ComesOutAsItWentInHoweverItIsCut) {
  const std::string text("some\0bytes\n", 11);
  const auto bytes =
      encode_message({AgentMessage::output, 3, text}) + encode_message({AgentMessage::beat});
  for (std::size_t cut = 0; cut <= bytes.size(); ++cut) {
    MessageReader reader;
    std::vector<Message> messages;
    for (const auto& part : {bytes.substr(0, cut), bytes.substr(cut)}) {
      reader.feed(part);
      while (auto message = reader.next()) messages.push_back(*message);
    }
    ASSERT_EQ(messages.size(), 2u) << cut;
    EXPECT_EQ(messages[0].rank, 3);
    EXPECT_EQ(messages[0].text, text);
    EXPECT_EQ(messages[1].kind, AgentMessage::beat);
  }
}

TEST(AgentMessage, RefusesStrangeBytes) {
  MessageReader reader;
  reader.feed("Welcome to host7!\n");
  EXPECT_THROW(reader.next(), Error);
}

TEST(AgentMessage, TheJobArrivesWhole) {
  AgentJob job;
  job.command = {"python", "train.py", ""};
  job.directory = "/work";
  job.directory_is_needed = true;
  job.environment = {{"A", "b=c\n"}};
  job.ranks = {{4, {{"RANK", "4"}}}, {5, {}}};
  job.is_first_host = true;
  job.master = {"fd00::2", 29500};
  job.silence_ms = 60'000;
  job.may_restart = true;
  const auto read = decode_job(encode_job(job));
  EXPECT_EQ(read.command, job.command);
  EXPECT_EQ(read.directory, job.directory);
  EXPECT_TRUE(read.directory_is_needed);
  EXPECT_EQ(read.environment, job.environment);
  ASSERT_EQ(read.ranks.size(), 2u);
  EXPECT_EQ(read.ranks[0].environment, job.ranks[0].environment);
  EXPECT_EQ(read.ranks[1].rank, 5);
  EXPECT_TRUE(read.is_first_host);
  EXPECT_EQ(read.master, job.master);
  EXPECT_EQ(read.silence_ms, 60'000);
  EXPECT_TRUE(read.may_restart);
  EXPECT_THROW(decode_job(encode_job(job).substr(1)), Error);
  job.command.clear();
  EXPECT_THROW(decode_job(encode_job(job)), Error);
}

TEST(AgentMessage, ErrorsKeepTheirCodeAndRank) {
  const auto error = decode_error(encode_error({ErrorCode::Timeout, "too late", 7}));
  EXPECT_EQ(error.code(), ErrorCode::Timeout);
  EXPECT_STREQ(error.what(), "too late");
  EXPECT_EQ(error.rank(), 7);
  EXPECT_FALSE(decode_error(encode_error({ErrorCode::System, "x"})).rank());
}

TEST(AgentMessage, AnotherVersionsGreetingCanBeRead) {
  const auto hello = decode_hello(encode_hello({"9.1", "host7", ""}) + "what comes later");
  EXPECT_EQ(hello.version, "9.1");
  EXPECT_EQ(hello.host_name, "host7");
}

TEST(RankOutput, ShowsWholeLinesWithTheirRank) {
  RankOutput output(true);
  EXPECT_EQ(output.take(3, OutputStream::out, "epo"), "");
  EXPECT_EQ(output.take(1, OutputStream::out, "one\ntwo\nth"), "[1] one\n[1] two\n");
  EXPECT_EQ(output.take(3, OutputStream::out, "ch 1\n"), "[3] epoch 1\n");
  EXPECT_EQ(output.take(1, OutputStream::out, "ree\n"), "[1] three\n");
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

constexpr const char* kTraceback = "Traceback (most recent call last):\nKeyError: x\n";

TEST(RankOutput, OfTracebacksThatOfTheCauseIsShown) {
  RankOutput output(true);
  auto& tracebacks = output.tracebacks();
  EXPECT_NE(output.take(1, OutputStream::errors, kTraceback), "");
  EXPECT_EQ(output.take(0, OutputStream::errors, kTraceback), "") << "it may follow from rank 1's";
  EXPECT_EQ(output.take(0, OutputStream::out, "bye\n"), "[0] bye\n");
  EXPECT_EQ(tracebacks.first_to_complain(), 1);
  EXPECT_EQ(tracebacks.name_cause(1), "");
  EXPECT_EQ(output.take(2, OutputStream::errors, kTraceback), "") << "it does follow";
  EXPECT_EQ(tracebacks.release(/*all=*/true), "");
  EXPECT_EQ(tracebacks.left_out(), (std::vector<int>{0, 2}));
}

TEST(RankOutput, WhatWasHeldBackIsShownWhereAnotherRankIsTheCause) {
  RankOutput output(true);
  auto& tracebacks = output.tracebacks();
  output.take(1, OutputStream::errors, kTraceback);
  output.take(0, OutputStream::errors, kTraceback);
  EXPECT_EQ(tracebacks.name_cause(0), "[0] Traceback (most recent call last):\n[0] KeyError: x\n");
  EXPECT_EQ(output.take(2, OutputStream::errors, "Traceback (most recent call last):\n"),
            "[2] Traceback (most recent call last):\n");
  EXPECT_TRUE(tracebacks.left_out().empty());
}

TEST(RankOutput, WhoseJobDoesNotFailHasSaidAll) {
  RankOutput output(false);
  output.take(1, OutputStream::errors, kTraceback);
  EXPECT_EQ(output.take(0, OutputStream::errors, kTraceback), "");
  EXPECT_EQ(output.tracebacks().release(/*all=*/true), kTraceback);
  EXPECT_EQ(output.take(0, OutputStream::errors, "more\n"), "more\n");
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

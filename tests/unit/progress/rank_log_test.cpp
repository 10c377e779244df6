#include "bimetal/progress/rank_log.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <thread>
#include <vector>

#include "bimetal/progress/worker_summary.h"
#include "support/thread_ranks.h"

namespace bimetal::progress {
namespace {

using ::testing::HasSubstr;

std::size_t bytes_of(const std::vector<RankLine>& lines) {
  std::size_t bytes = 0;
  for (const auto& line : lines) bytes += line.kind.size() + line.text.size();
  return bytes;
}

TEST(RankLog, GivesALittleAtATimeInOrderAndSaysWhatItDropped) {
  RankLog log;
  EXPECT_FALSE(log.due());
  for (int i = 0; i < 5000; ++i) log.say("output", "line " + std::to_string(i));
  ASSERT_TRUE(log.due());
  std::vector<RankLine> all;
  for (auto some = log.take(); !some.empty(); some = log.take()) {
    EXPECT_LE(bytes_of(some), RankLog::kMostAtOnce + 100);
    all.insert(all.end(), some.begin(), some.end());
  }
  EXPECT_LE(bytes_of(all), RankLog::kMostWaiting);
  EXPECT_THAT(all.front().text, HasSubstr("lines before these are left out"));
  EXPECT_EQ(all.back().text, "line 4999");
  EXPECT_EQ(all[all.size() - 2].text, "line 4998");
  EXPECT_GT(all.back().at, 1.7e9);
}

TEST(RankLog, IsDueAgainOnlyAfterAWhile) {
  RankLog log;
  log.say("warning", "one");
  log.take();
  log.say("warning", "two");
  EXPECT_FALSE(log.due());
  std::this_thread::sleep_for(RankLog::kBetween);
  EXPECT_TRUE(log.due());
}

TEST(RankLog, CutsLinesBetweenCharacters) {
  RankLog log;
  std::string text;
  while (text.size() < 2 * RankLog::kMostOfLine) text += "ä€";
  log.say("output", text);
  const auto line = log.take().at(0).text;
  EXPECT_LE(line.size(), RankLog::kMostOfLine + 3);
  const auto whole = line.substr(0, line.size() - std::string("…").size());
  EXPECT_EQ(text.substr(0, whole.size()), whole);
  EXPECT_TRUE(whole.ends_with("ä") || whole.ends_with("€"));
}

TEST(RankLog, RankZeroGetsWhatEachHasToSay) {
  bimetal::testing::run_ranks(3, [](int rank, comm::Group group) {
    RankLog log;
    for (int i = 0; i < rank; ++i) log.say("warning", "of rank " + std::to_string(rank));
    const auto lines = gather_lines(group, log, std::chrono::seconds(20));
    ASSERT_EQ(lines.size(), 3U);
    EXPECT_TRUE(lines[0].empty());
    EXPECT_EQ(lines[1].size(), 1U);
    ASSERT_EQ(lines[2].size(), 2U);
    EXPECT_EQ(lines[2][1].text, "of rank 2");
    EXPECT_EQ(lines[2][1].kind, "warning");
  });
}

TEST(RankLog, TheWishToTellTravelsBesideTheOthers) {
  bimetal::testing::run_ranks(2, [](int rank, comm::Group group) {
    FigureExchange exchange(group);
    RankFigures mine;
    mine.wishes = {.save = rank == 1, .dismiss = 1, .profile = 1000, .tell = rank == 0};
    exchange.start(mine, Deadline::after(std::chrono::seconds(20)));
    const auto all = exchange.wait();
    EXPECT_TRUE(all[0].wishes.tell);
    EXPECT_FALSE(all[1].wishes.tell);
    for (const auto& one : all) {
      EXPECT_EQ(one.wishes.profile, 1000);
      EXPECT_EQ(one.wishes.dismiss, 1);
      EXPECT_FALSE(one.wishes.stop);
    }
    EXPECT_TRUE(all[1].wishes.save);
  });
}

}  // namespace
}  // namespace bimetal::progress

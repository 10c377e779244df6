#include "bimetal/monitor/history.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>

#include "bimetal/progress/rank_log.h"

namespace bimetal::monitor {
namespace {

using Json = nlohmann::json;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

progress::Progress step_of(std::int64_t step, std::vector<std::int64_t> shares = {75, 25}) {
  return {.step = step,
          .steps = 1'000'000,
          .loss = 1.0 / static_cast<double>(step),
          .samples_per_s = 2000,
          .efficiency = 0.5,
          .elapsed_s = 0.1 * static_cast<double>(step),
          .shares = std::move(shares),
          .rank_samples_per_s = {1600, 400},
          .learning_rate = 0.25};
}

Json all_of(const History& history) {
  History::Known known;
  return Json::parse(history.to_json(known));
}

std::vector<std::string> kinds_of(const Json& json) {
  std::vector<std::string> kinds;
  for (const auto& event : json.at("events")) kinds.push_back(event.at("kind"));
  return kinds;
}

TEST(MonitorHistory, KeepsWhatWasTold) {
  History history;
  history.on_step(step_of(1));
  history.on_evaluated(1, {.loss = 0.5, .metrics = {{"accuracy", 0.75}}, .data = "validation"});
  history.on_checkpoint("runs/a/step-1", 1);
  history.on_step(step_of(2));
  const auto json = all_of(history);
  const auto& points = json.at("points");
  EXPECT_EQ(points.at("step"), Json({1, 2}));
  EXPECT_EQ(points.at("loss"), Json({1.0, 0.5}));
  EXPECT_EQ(points.at("of_fastest"), Json({1.25, 1.25}));
  EXPECT_EQ(points.at("learning_rate"), Json({0.25, 0.25}));
  EXPECT_TRUE(points.at("loss_scale").at(0).is_null());
  EXPECT_EQ(points.at("shares").at(1), Json({75, 25}));
  EXPECT_EQ(json.at("evaluations").at(0).at("metrics").at("accuracy"), 0.75);
  EXPECT_EQ(json.at("plan").at("alone"), Json({1600, 400}));
  EXPECT_THAT(kinds_of(json), ElementsAre("evaluation", "checkpoint"));
}

TEST(MonitorHistory, OfAMillionStepsItKeepsLittle) {
  History history;
  for (std::int64_t step = 1; step <= 1'000'000; ++step) {
    history.on_step(step_of(step));
    if (step % 100 == 0) history.on_notice(std::string(3000, 'x'));
  }
  const auto json = all_of(history);
  const auto& steps = json.at("points").at("step");
  EXPECT_LE(steps.size(), 2000U);
  EXPECT_GE(steps.size(), 1000U);
  EXPECT_EQ(steps.at(0), 1);
  EXPECT_GT(steps.back(), 999'000);
  EXPECT_EQ(json.at("events").size(), History::kMostEvents);
  EXPECT_LT(json.dump().size(), 4'000'000U);
}

TEST(MonitorHistory, WhoeverListensGetsWhatIsNewAlone) {
  History history;
  history.on_notice("before");
  History::Known known;
  history.to_json(known);
  EXPECT_EQ(history.news(known), "");
  history.on_notice("after");
  history.on_profile({.first_step = 3,
                      .last_step = 4,
                      .phases = {"data", "wait"},
                      .seconds = {{1, 2}, {3, 4}},
                      .spans = {{{1, 2, 0.001, 0.0025}}, std::vector<progress::StepSpan>(9000)},
                      .latency_s = {0, 0.002}});
  const auto news = Json::parse(history.news(known));
  EXPECT_THAT(kinds_of(news), ElementsAre("notice", "phase"));
  EXPECT_EQ(news.at("profile").at("seconds").at(1), Json({3, 4}));
  EXPECT_EQ(news.at("profile").at("spans"), Json::parse("[[[1, 2, 1000, 2500]], []]"));
  EXPECT_EQ(news.at("profile").at("latency_s").at(1), 0.002);
  EXPECT_FALSE(news.contains("evaluations"));
  EXPECT_EQ(history.news(known), "");
  // One who has slept for longer than events are kept gets those that are left.
  for (std::size_t i = 0; i < 2 * History::kMostEvents; ++i) history.on_notice("many");
  EXPECT_EQ(Json::parse(history.news(known)).at("events").size(), History::kMostEvents);
}

TEST(MonitorHistory, LinesOfRanksAreNoEventsAndWhatAllNoticeIsThereOnce) {
  History history;
  history.on_notice("shares are capped");
  History::Known known;
  history.to_json(known);
  history.on_rank_lines(1, "pc",
                        {{.at = 5, .kind = "notice", .text = "shares are capped"},
                         {.at = 6, .kind = "warning", .text = "slow \xff disk"}});
  const auto news = Json::parse(history.news(known));
  EXPECT_TRUE(news.at("events").empty());
  ASSERT_EQ(news.at("lines").size(), 1U);
  const auto& line = news.at("lines").at(0);
  EXPECT_EQ(line.at("who"), "rank 1 on pc");
  EXPECT_EQ(line.at("kind"), "warning");
  EXPECT_EQ(line.at("at"), 6);
  EXPECT_EQ(history.news(known), "");
  for (int i = 0; i < 2000; ++i) {
    history.on_rank_lines(2, "", {{.kind = "output", .text = std::to_string(i)}});
  }
  history.on_rank_lines(-2, "pc", {{.kind = "output", .text = "1999"}});
  const auto all = all_of(history);
  EXPECT_THAT(kinds_of(all), ElementsAre("notice"));
  EXPECT_EQ(all.at("lines").size(), History::kMostLines);
  EXPECT_EQ(all.at("lines").back().at("who"), "server 1 on pc");
  EXPECT_EQ(all.at("lines").back().at("text"), "1999");
}

TEST(MonitorHistory, TellsWhySharesChange) {
  History history;
  history.on_step(step_of(1));
  auto slower = step_of(100, {55, 45});
  slower.rank_samples_per_s = {800, 400};
  history.on_step(slower);
  history.on_step(step_of(200, {56, 44}));  // too little
  const auto json = all_of(history);
  ASSERT_THAT(kinds_of(json), ElementsAre("shares"));
  EXPECT_EQ(json.at("events").at(0).at("text"),
            "shares 75 : 25 → 55 : 45: rank 0 computes 50 % slower than before");
}

TEST(MonitorHistory, TellsWhoCameAndWent) {
  History history;
  history.on_step(step_of(1));
  history.on_members({.step = 1,
                      .lost = {"cpu on a"},
                      .left = {"cpu on b"},
                      .came = {"cpu on c"},
                      .cause = "it hung up",
                      .workers = 3});
  history.on_step(step_of(2, {50, 25, 25}));
  const auto json = all_of(history);
  EXPECT_THAT(kinds_of(json), ElementsAre("lost", "left", "joined", "notice"));
  EXPECT_EQ(json.at("events").at(0).at("text"), "lost: cpu on a (it hung up)");
  EXPECT_EQ(json.at("plan").at("shares"), Json({50, 25, 25}));
}

TEST(MonitorHistory, OfVeryManyWorkersItKeepsNoShares) {
  History history;
  history.on_step(step_of(1, std::vector<std::int64_t>(History::kMostWorkers + 1, 1)));
  EXPECT_TRUE(all_of(history).at("points").at("shares").at(0).empty());
}

}  // namespace
}  // namespace bimetal::monitor

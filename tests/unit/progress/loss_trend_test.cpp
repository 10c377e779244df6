#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "bimetal/progress/journal.h"
#include "bimetal/progress/together.h"

namespace bimetal::progress {
namespace {

using ::testing::HasSubstr;

/// The notice on `steps` losses, and the number of losses before it.
struct Said {
  std::string text;
  int after = 0;
};

template <typename LossOf>
Said said_of(int steps, LossOf loss_of, bool fresh = true) {
  LossTrend trend(fresh);
  Said said;
  for (int step = 0; step < steps; ++step) {
    const auto word = trend.add(loss_of(step));
    if (!word) continue;
    EXPECT_TRUE(said.text.empty()) << "said twice";
    said = {*word, step + 1};
  }
  return said;
}

/// Batches differ: by ±10 %.
double noisy(double loss, int step) {
  return loss * (1 + 0.1 * std::sin(12.9898 * step));
}

TEST(LossTrend, SaysNothingOfATrainingThatLearns) {
  EXPECT_EQ(
      said_of(2000, [](int step) { return noisy(0.02 + 2.3 * std::exp(-step / 100.0), step); })
          .text,
      "");
}

TEST(LossTrend, ASlowStartIsNoFault) {
  EXPECT_EQ(said_of(2000, [](int step) { return noisy(2.3 - 0.0005 * step, step); }).text, "");
}

TEST(LossTrend, ALossThatRisesAgainIsToldOnce) {
  const auto said = said_of(1000, [](int step) { return step < 200 ? 2.3 - 0.009 * step : 2.3; });
  EXPECT_THAT(said.text, HasSubstr("has risen again, from 0.617"));
  EXPECT_EQ(said.after, 250) << "two spans after it has";
}

TEST(LossTrend, OneBadSpanIsNoTrend) {
  EXPECT_EQ(said_of(
                1000, [](int step) { return step / 25 == 10 ? 5.0 : 0.5; }, false)
                .text,
            "");
}

TEST(LossTrend, ALossThatNeverFallsIsToldOfANewTraining) {
  const auto flat = [](int step) { return noisy(2.3, step); };
  const auto said = said_of(1000, flat);
  EXPECT_THAT(said.text, HasSubstr("has not fallen in 400 steps: it was 2.3"));
  EXPECT_EQ(said.after, LossTrend::kPatience * LossTrend::kSpan);
  EXPECT_EQ(said_of(1000, flat, false).text, "") << "one that was resumed may be done";
}

TEST(LossTrend, GuessingAfterABurstIsNoProgress) {
  const auto said = said_of(1000, [](int step) { return step > 0 && step < 20 ? 9.0 : 2.303; });
  EXPECT_THAT(said.text, HasSubstr("has not fallen in 400 steps: it was 2.303"));
}

class Notices : public Observer {
 public:
  void on_step(const Progress&) override { ++steps; }
  void on_notice(const std::string& text) override { last = text; }
  int steps = 0;
  std::string last;
};

TEST(LossTrend, TheAdviceDependsOnWhetherGradientsAreOld) {
  for (const bool old : {false, true}) {
    LossTrend trend(true);
    Notices notices;
    Progress progress{.loss = 2.3, .workers = {{}, {}}};
    if (old) progress.workers[1].staleness = Staleness{.updates = 5, .sum = 5, .max = 1};
    for (int step = 0; step < 400; ++step) tell_step(progress, trend, notices);
    EXPECT_EQ(notices.steps, 400);
    EXPECT_THAT(notices.last, HasSubstr(old ? "servers.consistency" : "train.clip_norm"));
  }
}

TEST(LossTrend, SmallLossesMayDouble) {
  EXPECT_EQ(said_of(1000, [](int step) { return step < 25    ? 2.3
                                                : step < 500 ? 0.01
                                                             : 0.05; }).text,
            "");
}

TEST(LossTrend, WhatIsNoNumberIsPassedOver) {
  const auto nan = std::numeric_limits<double>::quiet_NaN();
  EXPECT_EQ(said_of(1000, [nan](int step) { return step % 2 ? nan : 1.0 / (1 + step); }).text, "");
}

History history_of(std::int64_t steps) {
  History history;
  for (std::int64_t step = 1; step <= steps; ++step) history.add({.step = step});
  return history;
}

TEST(History, KeepsEveryPointOfAShortRun) {
  const auto history = history_of(1999);
  ASSERT_EQ(history.points().size(), 1999u);
  EXPECT_EQ(history.points().back().step, 1999);
}

TEST(History, ThinsALongRunEvenly) {
  for (const std::int64_t steps : {2001, 5000, 123'456}) {
    const auto history = history_of(steps);
    const auto& points = history.points();
    EXPECT_LE(points.size(), History::kMost);
    EXPECT_GE(points.size(), History::kMost / 2);
    EXPECT_EQ(points.front().step, 1);
    const auto stride = points[1].step - points[0].step;
    for (std::size_t i = 1; i < points.size(); ++i) {
      ASSERT_EQ(points[i].step - points[i - 1].step, stride);
    }
    EXPECT_GT(points.back().step + stride, steps);
  }
}

using testing::HasSubstr;
using testing::Not;

/// 100 s of two workers that do 1,000 and 250 samples/s alone.
Report report_of(double samples_per_s, double wait_0, double wait_1) {
  Report report{.world_size = 2, .elapsed_s = 100, .samples_per_s = samples_per_s};
  report.workers.push_back({.rank = 0, .share = 0.8, .samples = 80, .samples_per_s_alone = 1000});
  report.workers.push_back({.rank = 1, .share = 0.2, .samples = 20, .samples_per_s_alone = 250});
  report.workers[0].wait_s = wait_0;
  report.workers[1].wait_s = wait_1;
  for (auto& worker : report.workers) worker.compute_s = 99 - worker.wait_s;
  return report;
}

TEST(FastestAlone, IsOfJobsOfSeveralWorkersOnly) {
  auto report = report_of(1200, 1, 1);
  EXPECT_EQ(fastest_alone(report)->rank, 0);
  EXPECT_DOUBLE_EQ(fastest_alone(report)->job_relative, 1.2);
  report.workers.pop_back();
  EXPECT_FALSE(fastest_alone(report));
  EXPECT_FALSE(fastest_alone(Report{}));
}

TEST(FastestAlone, NamesTheRankThatAllWaitFor) {
  const auto time = fastest_alone(report_of(880, 30, 2))->time;
  EXPECT_THAT(time, HasSubstr("computed for 69 %"));
  EXPECT_THAT(time, HasSubstr("waited for 30 %, most of all for rank 1 with its 20 %"));
}

TEST(FastestAlone, BlamesNobodyWhereAllWait) {
  const auto time = fastest_alone(report_of(700, 40, 38))->time;
  EXPECT_THAT(time, HasSubstr("waited for 40 %, as all did: for each other in turn"));
}

TEST(FastestAlone, TellsOfIdleRanksAndOfSharesThatDoNotFollow) {
  auto report = report_of(900, 1, 1);
  EXPECT_THAT(fastest_alone(report)->time, Not(HasSubstr("had no samples")));
  report.history = {{.shares = {256, 0}}, {.shares = {216, 40}}};
  EXPECT_THAT(fastest_alone(report)->time, HasSubstr("rank 1 had no samples in 50 % of the steps"));
  report.balance = BalanceRecord{.policy = "equal"};
  EXPECT_THAT(fastest_alone(report)->time, HasSubstr("shares were equal by the job's"));
}

}  // namespace
}  // namespace bimetal::progress

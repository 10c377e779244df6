#include "bimetal/progress/loss_trend.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace bimetal::progress {
namespace {

using ::testing::HasSubstr;

/// What is said of `steps` losses, and after how many.
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

}  // namespace
}  // namespace bimetal::progress

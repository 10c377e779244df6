#include "bimetal/train/progress_meter.h"

#include <gtest/gtest.h>

#include <chrono>
#include <thread>

namespace bimetal::train {
namespace {

using namespace std::chrono_literals;

const std::vector<double> kNoPrediction = {0, 0};

std::vector<RankFigures> figures(std::int64_t first, std::int64_t second) {
  return {{.batch = first, .compute_seconds = 0.5}, {.batch = second, .compute_seconds = 0.25}};
}

TEST(ProgressMeter, EfficiencyIsTheRateByTheSumOfTheLoneRates) {
  ProgressMeter meter(2);
  meter.start();
  for (int i = 0; i < 3; ++i) {
    std::this_thread::sleep_for(5ms);
    meter.count(figures(100, 20), true);
  }
  const auto rates = meter.whole_run(kNoPrediction);
  EXPECT_DOUBLE_EQ(rates.alone[0], 200);
  EXPECT_DOUBLE_EQ(rates.alone[1], 80);
  EXPECT_DOUBLE_EQ(rates.samples_per_s, 360 / meter.elapsed_seconds());
  EXPECT_DOUBLE_EQ(rates.efficiency, rates.samples_per_s / 280);
  EXPECT_EQ(meter.samples(0), 300);
  EXPECT_DOUBLE_EQ(meter.compute_seconds(1), 0.75);
}

TEST(ProgressMeter, RankWithoutSamplesIsGivenThePrediction) {
  ProgressMeter meter(2);
  meter.start();
  meter.count(std::vector<RankFigures>{{.batch = 10, .compute_seconds = 1}, {}}, true);
  EXPECT_DOUBLE_EQ(meter.whole_run(std::vector<double>{1000, 3}).alone[0], 10);
  EXPECT_DOUBLE_EQ(meter.whole_run(std::vector<double>{1000, 3}).alone[1], 3);
}

TEST(ProgressMeter, RepeatedStepCostsTimeAndBringsNoSamples) {
  ProgressMeter meter(2);
  meter.start();
  std::this_thread::sleep_for(5ms);
  meter.count(figures(100, 20), false);
  EXPECT_GE(meter.elapsed_seconds(), 0.005);
  EXPECT_EQ(meter.samples(0), 0);
}

TEST(ProgressMeter, TimeBetweenAStepAndAStartDoesNotCount) {
  ProgressMeter meter(2);
  meter.start();
  meter.count(figures(1, 1), true);
  const auto before = meter.elapsed_seconds();
  std::this_thread::sleep_for(200ms);  // an evaluation
  meter.start();
  meter.count(figures(1, 1), true);
  EXPECT_LT(meter.elapsed_seconds() - before, 0.2);
}

TEST(ProgressMeter, RecentFollowsAChangeThatTheWholeRunAveragesAway) {
  ProgressMeter meter(2);
  meter.start();
  for (int i = 0; i < 4; ++i) {
    std::this_thread::sleep_for(1s);
    meter.count(figures(100, 100), true);
  }
  std::this_thread::sleep_for(4s);
  meter.count(figures(4000, 4000), true);
  EXPECT_GT(meter.recent(kNoPrediction).samples_per_s,
            1.2 * meter.whole_run(kNoPrediction).samples_per_s);
}

}  // namespace
}  // namespace bimetal::train

#include "bimetal/progress/progress_meter.h"

#include <gtest/gtest.h>

#include <chrono>
#include <thread>

namespace bimetal::progress {
namespace {

using namespace std::chrono_literals;

/// Two workers, what they have done, and a step of theirs.
class Workers {
 public:
  void step(ProgressMeter& meter, std::int64_t first, std::int64_t second) {
    add(0, first, 0.5);
    add(1, second, 0.25);
    meter.count(states_);
  }
  void add(std::size_t worker, std::int64_t samples, double compute_s) {
    states_[worker].totals.samples += samples;
    states_[worker].totals.compute_s += compute_s;
  }
  const std::vector<WorkerState>& states() const { return states_; }
  WorkerState& operator[](std::size_t worker) { return states_[worker]; }

 private:
  std::vector<WorkerState> states_ = std::vector<WorkerState>(2);
};

TEST(ProgressMeter, EfficiencyIsTheRateByTheSumOfTheLoneRates) {
  ProgressMeter meter;
  Workers workers;
  meter.start();
  for (int i = 0; i < 3; ++i) {
    std::this_thread::sleep_for(5ms);
    workers.step(meter, 100, 20);
  }
  const auto rates = rates_over(meter.elapsed_seconds(), workers.states());
  EXPECT_DOUBLE_EQ(rates.alone[0], 200);
  EXPECT_DOUBLE_EQ(rates.alone[1], 80);
  EXPECT_DOUBLE_EQ(rates.samples_per_s, 360 / meter.elapsed_seconds());
  EXPECT_DOUBLE_EQ(rates.efficiency, rates.samples_per_s / 280);
}

TEST(ProgressMeter, RankWithoutSamplesIsGivenThePrediction) {
  ProgressMeter meter;
  Workers workers;
  meter.start();
  workers[0].expected_alone = 1000;
  workers[1].expected_alone = 3;
  workers.add(0, 10, 1);
  meter.count(workers.states());
  for (const auto& rates :
       {rates_over(meter.elapsed_seconds(), workers.states()), meter.recent(workers.states())}) {
    EXPECT_DOUBLE_EQ(rates.alone[0], 10);
    EXPECT_DOUBLE_EQ(rates.alone[1], 3);
  }
}

TEST(ProgressMeter, RepeatedStepCostsTimeAndBringsNoSamples) {
  ProgressMeter meter;
  Workers workers;
  meter.start();
  std::this_thread::sleep_for(5ms);
  meter.count_repeated();
  EXPECT_GE(meter.elapsed_seconds(), 0.005);
  workers.step(meter, 100, 20);
  EXPECT_DOUBLE_EQ(rates_over(meter.elapsed_seconds(), workers.states()).samples_per_s,
                   120 / meter.elapsed_seconds());
}

TEST(ProgressMeter, TimeBetweenAStepAndAStartDoesNotCount) {
  ProgressMeter meter;
  Workers workers;
  meter.start();
  workers.step(meter, 1, 1);
  const auto before = meter.elapsed_seconds();
  std::this_thread::sleep_for(200ms);  // an evaluation
  meter.start();
  workers.step(meter, 1, 1);
  EXPECT_LT(meter.elapsed_seconds() - before, 0.2);
}

TEST(ProgressMeter, AWorkerThatLeftCountsForTheWholeRunAlone) {
  ProgressMeter meter;
  Workers workers;
  meter.start();
  workers.step(meter, 100, 20);
  workers[1].here = false;
  std::this_thread::sleep_for(5ms);
  workers.add(0, 100, 0.5);
  meter.count(workers.states());
  EXPECT_EQ(meter.recent(workers.states()).alone[1], 0);
  EXPECT_DOUBLE_EQ(rates_over(meter.elapsed_seconds(), workers.states()).alone[1], 80);
}

TEST(ProgressMeter, NoTimePassesUntilItGoesOn) {
  ProgressMeter meter;
  Workers workers;
  meter.start();
  meter.stop();
  const auto before = meter.elapsed_seconds();
  std::this_thread::sleep_for(5ms);
  workers.step(meter, 1, 1);
  EXPECT_EQ(meter.elapsed_seconds(), before);
}

TEST(ProgressMeter, RecentFollowsAChangeThatTheWholeRunAveragesAway) {
  ProgressMeter meter;
  Workers workers;
  meter.start();
  for (int i = 0; i < 4; ++i) {
    std::this_thread::sleep_for(1s);
    workers.step(meter, 100, 100);
  }
  std::this_thread::sleep_for(4s);
  workers.step(meter, 4000, 4000);
  EXPECT_GT(meter.recent(workers.states()).samples_per_s,
            1.2 * rates_over(meter.elapsed_seconds(), workers.states()).samples_per_s);
}

}  // namespace
}  // namespace bimetal::progress

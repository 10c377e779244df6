#include <gtest/gtest.h>

#include <chrono>
#include <cmath>
#include <thread>

#include "bimetal/progress/journal.h"

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

TEST(ProgressMeter, ANewcomerCountsFromWhatOthersHaveCounted) {
  ProgressMeter meter;
  const std::vector<WorkerTotals> done = {{.samples = 1'000'000, .compute_s = 1000}};
  meter.go_on(1000, done);
  meter.start();
  std::this_thread::sleep_for(5ms);
  auto totals = done[0];
  totals.samples += 100;
  totals.compute_s += 1;
  const std::vector<WorkerState> workers = {{.totals = totals}};
  meter.count(workers);
  EXPECT_GT(meter.elapsed_seconds(), 1000);
  EXPECT_DOUBLE_EQ(meter.recent(workers).alone[0], 100);
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

WorkerState worker(std::int64_t samples, double compute_s, std::uint64_t bytes = 0) {
  return {.totals = {.samples = samples, .compute_s = compute_s, .bytes_sent = bytes}};
}

/// Two epochs of two steps each, of 40 samples.
class AJournal : public ::testing::Test {
 protected:
  AJournal() { journal_.start_clock(); }

  Progress step(std::int64_t number, double loss_sum) {
    std::this_thread::sleep_for(2ms);
    const std::vector<WorkerState> workers = {
        worker(30 * number, 0.3 * static_cast<double>(number)),
        worker(10 * number, 0.2 * static_cast<double>(number))};
    return journal_.add({.number = number,
                         .epoch = (number - 1) / 2,
                         .weight = 40,
                         .loss_sum = loss_sum,
                         .shares = {30, 10}},
                        workers);
  }

  Journal journal_{{.epochs = 2, .steps = 4, .global_batch = 40}};
};

TEST_F(AJournal, TellsOfAStepWhatItsWorkersHaveDone) {
  step(1, 80);
  const auto told = step(2, 40);
  EXPECT_EQ(told.epoch, 1);
  EXPECT_EQ(told.step, 2);
  EXPECT_DOUBLE_EQ(told.loss, 1);
  EXPECT_EQ(told.shares, (std::vector<std::int64_t>{30, 10}));
  EXPECT_EQ(told.workers[1].samples, 20);
  EXPECT_NEAR(told.rank_samples_per_s[0], 100, 1e-9);
  EXPECT_NEAR(told.rank_samples_per_s[1], 50, 1e-9);
  EXPECT_NEAR(told.efficiency, told.samples_per_s / 150, 1e-9);
  EXPECT_NEAR(told.seconds_left, 80 / told.samples_per_s, 1e-9);
}

TEST_F(AJournal, ReportsTheLastEpochsLossAndTheWholeRunsRates) {
  for (std::int64_t number = 1; number <= 4; ++number)
    step(number, 40.0 / static_cast<double>(number));
  journal_.add_evaluation(4, {.metrics = {{"accuracy", 0.5}}});
  const std::vector<WorkerAtEnd> workers = {{0, {"mac", "mps"}, worker(120, 1.2, 7)},
                                            {1, {"pc", "cpu"}, worker(40, 0.8, 5)}};
  const auto report = journal_.report(4, workers, 2.0);
  EXPECT_DOUBLE_EQ(report.train_loss, (40.0 / 3 + 40.0 / 4) / 80);
  EXPECT_DOUBLE_EQ(value_of(last_metrics(report), "accuracy"), 0.5);
  EXPECT_DOUBLE_EQ(report.samples_per_s, 80);
  EXPECT_DOUBLE_EQ(report.efficiency, 80.0 / 150);
  EXPECT_EQ(report.bytes_sent, 12);
  EXPECT_EQ(report.history.size(), 4u);
  EXPECT_EQ(report.workers[1].device, "cpu");
  EXPECT_DOUBLE_EQ(report.workers[1].share, 0.25);
}

TEST_F(AJournal, OfARunWithoutAStepThereIsNoLoss) {
  const auto report = journal_.report(0, std::vector<WorkerAtEnd>(1), 0);
  EXPECT_TRUE(std::isnan(report.train_loss));
  EXPECT_EQ(report.samples_per_s, 0);
  EXPECT_EQ(report.workers[0].share, 0);
}

}  // namespace
}  // namespace bimetal::progress

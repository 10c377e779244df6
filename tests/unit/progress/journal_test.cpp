#include "bimetal/progress/journal.h"

#include <gtest/gtest.h>

#include <chrono>
#include <cmath>
#include <thread>

namespace bimetal::progress {
namespace {

using namespace std::chrono_literals;

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

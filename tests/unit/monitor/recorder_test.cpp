#include "bimetal/monitor/recorder.h"

#include <gtest/gtest.h>

#include <limits>

namespace bimetal::monitor {
namespace {

/// A job of two workers, the first three times as fast, that trains 100 samples in each 0.05 s.
progress::Progress after(std::int64_t steps) {
  const auto n = static_cast<double>(steps);
  return {.epoch = 1,
          .epochs = 2,
          .step = steps,
          .steps = 1000,
          .loss = 1 / n,
          .samples_per_s = 2000,
          .efficiency = 0.9,
          .seconds_left = 7,
          .elapsed_s = 0.05 * n,
          .shares = {75, 25},
          .rank_samples_per_s = {1600, 540},
          .workers = {{.samples = 75 * steps,
                       .compute_s = 0.04 * n,
                       .communicate_s = 0.01 * n,
                       .wait_s = 0.005 * n,
                       .bytes_sent = static_cast<std::uint64_t>(1000 * steps)},
                      {.samples = 25 * steps, .compute_s = 0.05 * n, .wait_s = 0}}};
}

TEST(Recorder, KnowsThePhaseBeforeTheFirstStep) {
  Recorder recorder;
  EXPECT_EQ(recorder.status().phase, "starting");
  recorder.on_phase("loading data");
  EXPECT_EQ(recorder.status().phase, "loading data");
  recorder.on_data({.what = "sending 29.5 MiB of data to 1 machine"});
  recorder.on_workers({{"pc", "cuda:0"}, {"mac", "mps", "stage 1 of 2"}});
  const auto status = recorder.status();
  EXPECT_FALSE(status.workers.at(0).stage || status.schedule || status.micro_batches);
  EXPECT_EQ(status.workers.at(1).stage, "stage 1 of 2");
  EXPECT_EQ(status.phase, "sending 29.5 MiB of data to 1 machine");
  EXPECT_GT(status.started_at, 1.7e9);
  EXPECT_EQ(status.step, 0);
  EXPECT_FALSE(status.loss || status.samples_per_s || status.since_step_s);
  ASSERT_EQ(status.workers.size(), 2u);
  EXPECT_EQ(status.workers[1].host, "mac");
  EXPECT_EQ(status.workers[1].device, "mps");
}

TEST(Recorder, RatesAreThoseOfTheLastSeconds) {
  Recorder recorder;
  recorder.on_workers({{"pc", "cuda:0"}, {"mac", "mps"}});
  for (std::int64_t step = 1; step <= 200; ++step) recorder.on_step(after(step));
  // Then the second worker stands still and the first one waits for it half of the time.
  for (std::int64_t step = 201; step <= 300; ++step) {
    auto progress = after(step);
    progress.workers[0].wait_s = 1 + 0.025 * static_cast<double>(step - 200);
    progress.workers[1].samples = 25 * 200;
    recorder.on_step(progress);
  }
  const auto status = recorder.status();
  EXPECT_EQ(status.step, 300);
  EXPECT_GE(status.since_step_s, 0);
  EXPECT_NEAR(*status.workers[0].samples_per_s, 75 / 0.05, 1e-6);
  EXPECT_NEAR(*status.workers[0].bytes_per_s, 1000 / 0.05, 1e-6);
  EXPECT_NEAR(*status.workers[0].wait_part, 0.5, 1e-9);
  EXPECT_EQ(*status.workers[1].samples_per_s, 0);
  EXPECT_EQ(status.workers[0].samples, 75 * 300);
  EXPECT_EQ(status.workers[0].share, 75);
  EXPECT_EQ(status.workers[1].samples_per_s_alone, 540);
  EXPECT_FALSE(status.workers[0].staleness || status.workers[0].staleness_max);
}

TEST(Recorder, StalenessIsTheMeanOverRecentUpdates) {
  Recorder recorder;
  for (std::int64_t step = 1; step <= 300; ++step) {
    auto progress = after(step);
    const auto late = std::max<std::int64_t>(step - 100, 0);
    progress.workers[1].staleness =
        progress::Staleness{.updates = step, .sum = step + 2 * late, .max = 9};
    recorder.on_step(progress);
  }
  const auto workers = recorder.status().workers;
  EXPECT_NEAR(*workers[1].staleness, 3, 1e-9);
  EXPECT_EQ(workers[1].staleness_max, 9);
  EXPECT_FALSE(workers[0].staleness);
}

TEST(Recorder, AModeWithoutTotalsHasSharesAlone) {
  Recorder recorder;
  auto progress = after(1);
  progress.workers.clear();
  progress.loss = std::numeric_limits<double>::quiet_NaN();
  recorder.on_step(progress);
  const auto status = recorder.status();
  ASSERT_EQ(status.workers.size(), 2u);
  EXPECT_EQ(status.workers[0].share, 75);
  EXPECT_FALSE(status.workers[0].samples_per_s || status.workers[0].samples || status.loss);
}

TEST(Recorder, KeepsTheLastNoticesAndTheLastEvaluation) {
  Recorder recorder;
  for (int i = 0; i < 100; ++i) recorder.on_notice(std::to_string(i));
  recorder.on_evaluated(1, {.loss = 2, .metrics = {{"accuracy", 0.5}}});
  recorder.on_evaluated(2, {.loss = 1, .metrics = {{"accuracy", 0.75}}});
  recorder.on_evaluated(
      3, {.loss = 3, .metrics = {{"accuracy", 0.25}}, .data = progress::kValidationData});
  const auto status = recorder.status();
  EXPECT_EQ(status.notices, (std::vector<std::string>{"95", "96", "97", "98", "99"}));
  EXPECT_EQ(status.test_metrics, (progress::Metrics{{"accuracy", 0.75}}));
  EXPECT_EQ(status.test_loss, 1);
  EXPECT_EQ(status.validation_metrics, (progress::Metrics{{"accuracy", 0.25}}));
  EXPECT_EQ(status.validation_loss, 3);
}

}  // namespace
}  // namespace bimetal::monitor

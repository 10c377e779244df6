#include "bimetal/train/trainer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/api/include/torch/types.h>

#include <atomic>
#include <cmath>
#include <cstdlib>
#include <limits>

#include "bimetal/base/error.h"
#include "support/errors.h"
#include "unit/train/training_job.h"

namespace bimetal::train {
namespace {

using test::parameters_of;
using test::relative_difference;
using test::run_job;
using test::small_job;
using test::SyntheticImages;
using ::testing::HasSubstr;
using ::testing::SizeIs;

std::filesystem::path last_checkpoint(const test::Run& run) {
  return run.recorders[0].checkpoints.back();
}

class Trainer : public ::testing::Test {
 protected:
  Trainer() : images_(300, 120), job_(small_job(images_)) {
    job_.checkpoint.dir = (folder_ / "checkpoints").string();
  }

  /// The parameters after training `job_` on `ranks` ranks, in a folder of their own.
  checkpoint::TensorMap train(int ranks, const test::RunOptions& options = {}) {
    job_.checkpoint.dir = (folder_ / ("run" + std::to_string(++runs_))).string();
    return parameters_of(last_checkpoint(run_job(job_, ranks, options)));
  }

  test::TemporaryFolder folder_;
  SyntheticImages images_;
  job::JobConfig job_;
  int runs_ = 0;
};

std::string without_history(progress::Report report) {
  report.history.clear();
  for (auto& point : report.evaluations) point.elapsed_s = 0;
  return progress::to_json(report);
}

TEST_F(Trainer, TellsWhoWatchesWhatEachWorkerHasDone) {
  job_.parallel.balance = balance::Policy::Equal;  // none is left out for being slow just now
  const auto run = run_job(job_, 2);
  for (const auto& recorder : run.recorders) {
    ASSERT_THAT(recorder.workers, SizeIs(2));
    EXPECT_EQ(recorder.workers[1].host, "host1");
    EXPECT_EQ(recorder.workers[1].device, "cpu:threads=1");
    progress::WorkerTotals before;
    double elapsed = 0;
    for (const auto& step : recorder.steps) {
      ASSERT_THAT(step.workers, SizeIs(2));
      EXPECT_GT(step.elapsed_s, std::exchange(elapsed, step.elapsed_s));
      const auto& now = step.workers[1];
      EXPECT_GT(now.samples, before.samples);
      EXPECT_GT(now.compute_s, before.compute_s);
      EXPECT_GE(now.communicate_s, before.communicate_s);
      EXPECT_GE(now.wait_s, before.wait_s);
      EXPECT_GE(now.bytes_sent, before.bytes_sent);
      EXPECT_FALSE(now.staleness);
      before = now;
    }
    EXPECT_EQ(before.samples, run.reports[0].workers[1].samples);
    EXPECT_EQ(before.compute_s, run.reports[0].workers[1].compute_s);
    // These lag by a step.
    EXPECT_GT(before.bytes_sent, 0u);
    EXPECT_GT(before.communicate_s, 0);
    EXPECT_LE(before.communicate_s, run.reports[0].workers[1].communicate_s);
    EXPECT_GT(before.wait_s, 0);
    EXPECT_LE(before.wait_s, run.reports[0].workers[1].wait_s);
  }
}

TEST_F(Trainer, LearnsAndReportsTheSameOnEveryRank) {
  job_.train.epochs = 4;
  const auto run = run_job(job_, 2);
  const auto& report = run.reports[0];
  EXPECT_EQ(report.world_size, 2);
  EXPECT_EQ(report.steps, 40);  // 300 samples in batches of 32: 10 a epoch, the last of them short
  EXPECT_FALSE(report.interrupted);
  EXPECT_GT(test::accuracy_of(report), 0.5);
  EXPECT_LT(report.train_loss, run.recorders[0].steps.front().loss / 2);
  ASSERT_THAT(report.workers, SizeIs(2));
  EXPECT_EQ(report.workers[0].samples + report.workers[1].samples, 4 * 300);
  EXPECT_EQ(report.workers[1].host, "host1");
  EXPECT_EQ(report.workers[1].device, "cpu:threads=1");
  EXPECT_GT(report.bytes_sent, 0);
  EXPECT_NEAR(report.samples_per_s * report.elapsed_s, 4 * 300, 1e-6);
  EXPECT_NEAR(report.efficiency,
              report.samples_per_s /
                  (report.workers[0].samples_per_s_alone + report.workers[1].samples_per_s_alone),
              1e-12);
  EXPECT_THAT(report.history, SizeIs(40));
  EXPECT_EQ(without_history(report), without_history(run.reports[1]));  // each has its own clock
}

// Of the job file's shares; golden has every model and optimizer.
TEST_F(Trainer, GivesTheResultOfOneDevice) {
  const auto alone = train(1);
  EXPECT_LT(relative_difference(train(2, {.speeds = {1, 0.3}}), alone), 1e-12) << "balanced";
  job_.parallel.balance = balance::Policy::Fixed;
  job_.parallel.weights = {5, 0, 2};
  EXPECT_LT(relative_difference(train(3), alone), 1e-12) << "one without samples";
}

/// Through shared memory nothing goes over the wire, compressed or not.
struct OverTcp {
  OverTcp() { ::setenv("BIMETAL_TRANSPORT", "tcp", 1); }
  ~OverTcp() { ::unsetenv("BIMETAL_TRANSPORT"); }
};

TEST_F(Trainer, LearnsAsWellCompressed) {
  const OverTcp over_tcp;
  job_.model.name = "mlp";
  job_.train.epochs = 4;
  const auto exact = run_job(job_, 2);
  const double at_first = exact.recorders[0].steps.front().loss;
  for (const char* scheme : {"bfloat16", "int8", "int4", "topk", "powersgd", "sign"}) {
    job_.compression.gradients = scheme;
    job_.compression.links = "all";
    job_.compression.topk_density = 0.05;
    job_.compression.topk_warmup_steps = 8;
    const auto run = run_job(job_, 2);
    EXPECT_EQ(run.reports[0].train_loss, run.reports[1].train_loss) << scheme;
    // One bit per element wants a smaller learning rate than this job has: it learns, but later.
    const double most = scheme == std::string("sign")
                            ? 0.75 * at_first
                            : exact.reports[0].train_loss + 0.1 * at_first;
    EXPECT_LT(run.reports[0].train_loss, most) << scheme;
    EXPECT_NE(run.reports[0].train_loss, exact.reports[0].train_loss) << scheme;
    EXPECT_LT(run.reports[0].bytes_sent, exact.reports[0].bytes_sent) << scheme;
  }
}

// Momentum, too, is then the optimizer's own.
TEST_F(Trainer, ARankAloneCompressesNothing) {
  const auto exact = train(1);
  for (const char* scheme : {"int8", "topk", "powersgd"}) {
    job_.compression.gradients = scheme;
    EXPECT_EQ(relative_difference(train(1), exact), 0) << scheme;
  }
}

TEST_F(Trainer, SlowerRankGetsLess) {
  job_.model.name = "mlp";
  job_.train.global_batch = 128;
  job_.train.epochs = 10;  // a busy machine misleads single steps
  const auto run = run_job(job_, 2, {.speeds = {1, 0.1}});
  const auto& workers = run.reports[0].workers;
  EXPECT_LT(workers[1].samples, workers[0].samples);
}

TEST_F(Trainer, ARankWithoutSamplesMeasuresItselfBesideTheWork) {
  job_.train.epochs = 20;
  const auto alone = train(1);
  const auto run = run_job(job_, 2, {.speeds = {1, 2e-4}});
  const auto& report = run.reports[0];
  ASSERT_EQ(report.workers[1].samples, 0) << "far too slow for a single sample";
  ASSERT_TRUE(report.balance && report.balance->complete);
  EXPECT_THAT(report.balance->steps, SizeIs(200));
  int measured = 0;
  for (const auto& step : report.balance->steps) {
    EXPECT_EQ(step.shadow_batch[0], 0) << "it has work";
    if (step.shadow_batch[1] == 0) continue;
    ++measured;
    EXPECT_GT(step.shadow_s[1], 0);
  }
  EXPECT_GT(measured, 0);
  EXPECT_EQ(relative_difference(parameters_of(last_checkpoint(run)), alone), 0)
      << "rank 0 did it all";
}

TEST_F(Trainer, StopsAfterTheStepsAskedFor) {
  job_.train.steps = 7;
  const auto run = run_job(job_, 2);
  EXPECT_EQ(run.reports[1].steps, 7);
  EXPECT_THAT(last_checkpoint(run).string(), HasSubstr("00000007"));
  ASSERT_EQ(run.reports[0].evaluations.size(), 1u) << "evaluated at the end";
  EXPECT_EQ(run.reports[0].evaluations[0].step, 7);
  EXPECT_EQ(progress::value_of(run.reports[0].evaluations[0].metrics, "accuracy"),
            test::accuracy_of(run.reports[0]));
  EXPECT_GT(run.reports[0].evaluations[0].elapsed_s, 0);
}

TEST_F(Trainer, WritesCheckpointsEveryFewStepsAndAtTheEndsOfEpochs) {
  job_.checkpoint.every_steps = 4;
  const auto run = run_job(job_, 2);
  std::vector<std::string> names;
  for (const auto& path : run.recorders[1].checkpoints) {
    names.push_back(std::filesystem::path(path).filename());
  }
  EXPECT_THAT(names, ::testing::ElementsAre("step-00000004", "step-00000008", "step-00000010",
                                            "step-00000012", "step-00000016", "step-00000020"));
}

TEST_F(Trainer, WritesCheckpointsByRankZerosClock) {
  job_.train.steps = 4;
  job_.checkpoint.every_minutes = 1e-9;  // less than any step takes
  const auto run = run_job(job_, 2);
  EXPECT_EQ(run.recorders[1].checkpoints.size(), 4u) << "the other rank saves the same steps";
}

TEST_F(Trainer, NotANumberNamesStepAndRankAndKeepsTheLastCheckpoint) {
  job_.train.learning_rate = 1e308;
  job_.train.epochs = 3;
  job_.parallel.balance =
      balance::Policy::Equal;  // so that both ranks have samples, and the first is named
  try {
    run_job(job_, 2);
    FAIL() << "the loss is not finite and nobody says so";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::NotFinite);
    EXPECT_THAT(error.what(), HasSubstr("step "));
    EXPECT_THAT(error.what(), HasSubstr("rank 0"));
    EXPECT_TRUE(error.rank().has_value());
  }
  EXPECT_FALSE(std::filesystem::exists(job_.checkpoint.dir) &&
               !bimetal::test::names_in(job_.checkpoint.dir).empty())
      << "no checkpoint may hold what was no number";
}

TEST_F(Trainer, ParametersThatAreNoNumbersAreNotSaved) {
  job_.train.learning_rate = std::numeric_limits<double>::infinity();
  job_.train.steps = 1;  // its loss is still finite: the update is what goes wrong
  expect_error(ErrorCode::NotFinite, {"after step 1"}, [&] { run_job(job_, 2); });
  EXPECT_FALSE(std::filesystem::exists(job_.checkpoint.dir));
}

TEST_F(Trainer, StopRequestOfAnyRankSavesAndEndsAllInOrder) {
  job_.train.epochs = 1000;
  std::atomic<int> polls = 0;
  const auto run =
      run_job(job_, 3, {.stop_requested = [&](int rank) { return rank == 2 && ++polls >= 5; }});
  for (const auto& report : run.reports) {
    EXPECT_TRUE(report.interrupted);
    EXPECT_EQ(report.steps, 5);
    EXPECT_TRUE(std::isnan(test::accuracy_of(report)));
  }
  EXPECT_THAT(last_checkpoint(run).string(), HasSubstr("00000005"));
}

TEST_F(Trainer, RanksWithUnlikeJobsFindOutBeforeTheFirstStep) {
  const auto unlike = [&](int, comm::Group group) {
    auto job = job_;
    if (group.rank() == 1) job.train.global_batch = 48;
    TrainerOptions options;
    options.worker = job::parse_worker_spec("cpu:threads=1");
    progress::Observer nobody;
    run_training(job, group, options, nobody);
  };
  expect_error(ErrorCode::CallMismatch, {"train.global_batch is '48' on rank 1 but '32' on rank 0"},
               [&] { bimetal::testing::run_ranks(2, unlike); });
}

TEST_F(Trainer, AnErrorOfOneRankAloneEndsTheOthers) {
  std::vector<std::string> messages(2);
  bimetal::testing::run_ranks(2, [&](int, comm::Group group) {
    auto job = job_;
    job.data.send = false;  // nor is it sent any
    if (group.rank() == 1) job.data.path = "/no/such/folder";
    TrainerOptions options;
    options.worker = job::parse_worker_spec("cpu:threads=1");
    progress::Observer nobody;
    try {
      run_training(job, group, options, nobody);
    } catch (const Error& error) {
      messages[static_cast<std::size_t>(group.rank())] = error.what();
    }
  });
  EXPECT_THAT(messages[0], HasSubstr("/no/such/folder")) << "rank 0 is told what happened";
  EXPECT_THAT(messages[1], HasSubstr("/no/such/folder"));
}

}  // namespace
}  // namespace bimetal::train
